"""What may be sampled, and how likely, in the plainest way: Python floats, one row."""

import math
from collections import Counter

from gossamer.engine.sampling_params import SamplingParams
from gossamer.engine.sampling_row import SamplingRow


def row(seed=0, prompt=(), output=(), eos=(), **params):
    return SamplingRow(SamplingParams(**params), seed, prompt, output, eos)


def oracle(logits, row, assume=lambda _: None):
    """Probabilities by token id, in the plainest way, of a row that is not greedy."""
    p = row.params
    x = [float(v) for v in logits]
    rep = p.repetition_penalty
    for token in {*row.prompt_ids, *row.output_ids}:
        x[token] = x[token] / rep if x[token] > 0 else x[token] * rep
    for token, count in Counter(row.output_ids).items():
        x[token] -= p.frequency_penalty * count + p.presence_penalty
    if len(row.output_ids) < p.min_tokens:
        for token in (*row.eos_ids, *p.stop_token_ids):
            x[token] = -math.inf
    weights = [math.exp((v - max(x)) / p.temperature) for v in x]
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))[: p.top_k or None]
    total = math.fsum(weights[i] for i in order)
    kept: list[int] = []
    reached = 0.0
    for token in order:
        if reached >= p.top_p and p.top_p < 1:
            break
        kept.append(token)
        reached += weights[token] / total
        assume(abs(reached - p.top_p) > 1e-9 or p.top_p == 1)  # too close for either to be right
    for w in weights:
        assume(abs(w - p.min_p) > 1e-6 * p.min_p or not p.min_p)
    kept = [i for i in kept if weights[i] >= p.min_p and x[i] > -math.inf]
    total = math.fsum(weights[i] for i in kept)
    return {i: weights[i] / total for i in kept}
