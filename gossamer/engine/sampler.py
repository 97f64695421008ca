"""From logits to tokens, for a batch of sequences that each have their own SamplingParams.

A row's result depends on that row alone: noise is a function of its seed and position (noise.py),
and whatever is summed over the vocabulary to choose a token is summed in integers, whose order does
not matter. The host waits for the device once, for everything together.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gossamer.engine.noise import gumbel
from gossamer.engine.sampling_params import MAX_SEED, SamplingParams

FAST_ARGMAX = (torch.float32, torch.float16, torch.bfloat16)
SMALL_K = 1024  # up to here, finding the largest k beats sorting the vocabulary
WEIGHT_ONE = 2.0**42  # weights are integers in these units: 2**20 of them still add up in int64
TEMPERATURES = (1e-30, 1e30)  # beyond them float32 has only 0 and infinity, and 0 / 0


@dataclass(frozen=True, eq=False)
class SamplingRow:
    """What the sampler needs to know of a sequence; its next token has position len(output_ids).

    One object serves all steps of a sequence: output_ids may be a list that grows. prompt_ids must
    not change, since its distinct tokens are remembered. seed: 64 bits, signed; ValueError
    otherwise. eos_ids: banned, beside params.stop_token_ids, while there are fewer than min_tokens.
    """

    params: SamplingParams
    seed: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if type(self.seed) is not int or not -MAX_SEED - 1 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed is {self.seed!r}; must be an int, -2**63 to 2**63 - 1")

    @cached_property
    def prompt_set(self) -> frozenset[int]:
        return frozenset(self.prompt_ids)

    @cached_property
    def _prompt_distinct(self) -> Tensor:
        """int64, ascending. A long prompt is turned into a tensor once, not in every step."""
        return torch.tensor(sorted(self.prompt_set), dtype=torch.int64)

    def prompt_within(self, vocab: int) -> Tensor:
        """The distinct tokens of the prompt that the vocabulary has; int64 on the CPU."""
        distinct = self._prompt_distinct
        inside = not len(distinct) or (distinct[0] >= 0 and distinct[-1] < vocab)
        return distinct if inside else distinct[(distinct >= 0) & (distinct < vocab)]

    @property
    def banned_ids(self) -> tuple[int, ...]:
        early = len(self.output_ids) < self.params.min_tokens
        return (*self.eos_ids, *self.params.stop_token_ids) if early else ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """token: -1 where none can be chosen, because the logits have a NaN or +inf or are all -inf (or
    banned): the engine fails that request. logprob, top (id, logprob; likeliest first): of the raw
    logits; None and () unless params.logprobs asks for them.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[Sampled]:
    """The next token of each row. logits: [rows, vocab], any float dtype, any device; unchanged.

    Raises TypeError or ValueError if logits are no such tensor.
    """
    _check(logits, rows)
    if not rows:
        return []
    logits = logits.detach()
    if all(_plain_greedy(row) for row in rows):
        best = _best(logits if logits.dtype in FAST_ARGMAX else logits.float())
        return [Sampled(token) for token in best.tolist()]
    logits = logits.float()
    keys = log_weights(logits, rows)
    warm = [i for i, row in enumerate(rows) if not row.params.greedy]
    if warm:
        seeds = _ints([rows[i].seed for i in warm], logits.device)
        positions = _ints([len(rows[i].output_ids) for i in warm], logits.device)
        noise = gumbel(seeds, positions, logits.shape[1])
        if len(warm) == len(rows):
            keys += noise
        else:
            keys[_ints(warm, logits.device)] += noise
    return _report(_best(keys), logits, rows)


def log_weights(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """What is sampled from, float32 [rows, vocab]: logarithms of weights whose maximum is 1.

    -inf: cannot be sampled. Rows that nothing can be sampled of have a NaN or are -inf throughout.
    Greedy rows are not restricted: their maximum is the same.
    """
    adjusted = _adjust(logits, rows)
    heat = [1.0 if row.params.greedy else row.params.temperature for row in rows]
    heat = [min(max(t, TEMPERATURES[0]), TEMPERATURES[1]) for t in heat]
    # Less the maximum before the division: a tiny temperature then overflows to -inf only.
    z = adjusted - adjusted.amax(-1, keepdim=True)
    z /= _floats(heat, z.device)[:, None]
    small: list[int] = []
    full: list[int] = []
    for i, row in enumerate(rows):
        if not row.params.greedy and (row.params.top_k or row.params.top_p < 1):
            (small if 0 < row.params.top_k <= SMALL_K else full).append(i)
    for group in (small, full):
        if group:
            at = _ints(group, z.device)
            z[at] = _restrict(z[at], [rows[i].params for i in group])
    if any(row.params.min_p and not row.params.greedy for row in rows):
        floors = [
            math.log(row.params.min_p) if row.params.min_p and not row.params.greedy else -math.inf
            for row in rows
        ]
        z.masked_fill_(z < _floats(floors, z.device)[:, None], -math.inf)
    return z


def _check(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits are {kind}; must be a tensor of floats")
    if logits.dim() != 2 or logits.shape[0] != len(rows) or logits.shape[1] == 0:
        raise ValueError(
            f"logits have shape {list(logits.shape)}; must be [{len(rows)}, vocab], a row for each "
            "sequence"
        )


def _plain_greedy(row: SamplingRow) -> bool:
    p = row.params
    return p.greedy and not p.penalises and p.logprobs is None and not row.banned_ids


def _best(keys: Tensor) -> Tensor:
    """int64 [rows]: the index of the maximum, the lowest if there are several, or -1."""
    best = keys.argmax(-1)  # a NaN counts as the largest of all
    found = keys.gather(1, best[:, None]).squeeze(1).isfinite()
    return best.masked_fill_(~found, -1)


def _put(values: Tensor, device: torch.device) -> Tensor:
    """On the device. Pinned before, since a copy of pageable memory would wait for the device."""
    pinned = values.pin_memory() if device.type == "cuda" else values
    return pinned.to(device, non_blocking=True)


def _ints(values: Sequence[int], device: torch.device) -> Tensor:
    return _put(torch.tensor(values, dtype=torch.int64), device)


def _floats(values: Sequence[float], device: torch.device) -> Tensor:
    return _put(torch.tensor(values, dtype=torch.float32), device)


# ---- penalties and bans -----------------------------------------------------------------


def _adjust(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Float32 logits with penalties and bans; not a copy where there are none."""
    vocab, device = logits.shape[1], logits.device
    # An id beyond the vocabulary cannot be sampled; as an index it would hit another row.
    banned = [
        i * vocab + token
        for i, row in enumerate(rows)
        for token in row.banned_ids
        if 0 <= token < vocab
    ]
    penalised = any(row.params.penalises for row in rows)
    if not (penalised or banned):
        return logits.float()
    flat = logits.to(torch.float32, copy=True).contiguous().view(-1)
    if penalised:
        _penalise(flat, vocab, rows)
    if banned:
        flat.index_fill_(0, _ints(banned, device), -math.inf)
    return flat.view(logits.shape)


def _penalise(flat: Tensor, vocab: int, rows: Sequence[SamplingRow]) -> None:
    """In place. Each token of a row is indexed once, so that no two writes go to one place."""
    seen = [torch.empty(0, dtype=torch.int64)]  # where to divide or multiply
    factors: list[float] = [1.0]  # by what, for each tensor in `seen`
    output: list[int] = []  # where to subtract
    less: list[float] = []  # what
    for i, row in enumerate(rows):
        p, start = row.params, i * vocab
        if not p.penalises:
            continue
        counts = {token: n for token, n in Counter(row.output_ids).items() if 0 <= token < vocab}
        if p.repetition_penalty != 1:
            fresh = [start + token for token in counts if token not in row.prompt_set]
            seen += [row.prompt_within(vocab) + start, torch.tensor(fresh, dtype=torch.int64)]
            factors += [p.repetition_penalty] * 2
        if p.frequency_penalty or p.presence_penalty:
            output += [start + token for token in counts]
            less += [p.frequency_penalty * n + p.presence_penalty for n in counts.values()]
    lengths = torch.tensor([len(part) for part in seen])
    by = torch.tensor(factors, dtype=torch.float32).repeat_interleave(lengths)
    at = _put(torch.cat(seen), flat.device)
    by = _put(by, flat.device)
    old = flat[at]
    flat[at] = torch.where(old > 0, old / by, old * by)
    flat[_ints(output, flat.device)] -= _floats(less, flat.device)


# ---- top_k and top_p --------------------------------------------------------------------


def _restrict(z: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """z [rows, vocab], whose maxima are 0, with -inf for what top_k and top_p leave out."""
    vocab = z.shape[1]
    kept = [min(p.top_k, vocab) if p.top_k else vocab for p in params]
    values, ids = _largest(z, max(kept))
    ranks = torch.arange(values.shape[1], device=z.device)
    in_k = ranks < _ints(kept, z.device)[:, None]
    # Integer sums are exact, so neither the device nor the batch can move the edge of top_p.
    weights = (values.double().exp() * WEIGHT_ONE).to(torch.int64) * in_k
    before = weights.cumsum(-1) - weights
    top_p = torch.tensor([[p.top_p] for p in params], dtype=torch.float64)
    top_p = _put(top_p, z.device)
    # With top_p = 1, weights too small to count stay as well.
    in_p = (before < top_p * weights.sum(-1, keepdim=True)) | (top_p == 1)
    values = values.masked_fill(~(in_k & in_p), -math.inf)
    # A row with a NaN sorts in unspecified ways; it stays bad.
    empty = torch.where(z.isnan().any(-1, keepdim=True), math.nan, -math.inf)
    return empty.to(z.dtype).expand_as(z).scatter(1, ids, values)


def _largest(z: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row in descending order, and their indices; equals by index."""
    if k > SMALL_K or k == z.shape[1]:
        values, ids = z.sort(dim=-1, descending=True, stable=True)
        return values[:, :k], ids[:, :k]
    # topk takes any of several equal values; only the first that there is room for may stay.
    least = z.topk(k, -1).values[:, -1:]
    above, equal = z > least, z == least
    room = k - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1) <= room))
    ids = z.masked_fill(~chosen, -math.inf).topk(k, -1).indices.sort(-1).values
    values, order = z.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


# ---- results ----------------------------------------------------------------------------


def _report(tokens: Tensor, logits: Tensor, rows: Sequence[SamplingRow]) -> list[Sampled]:
    """Tokens and what log probabilities the rows ask for, in one transfer."""
    asked = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    if not asked:
        return [Sampled(token) for token in tokens.tolist()]
    at = _ints(asked, logits.device)
    logprobs = logits[at].log_softmax(-1)
    own = logprobs.gather(1, tokens[at].clamp(min=0)[:, None])
    most = min(max(rows[i].params.logprobs or 0 for i in asked), logits.shape[1])
    parts = [tokens.double(), own.flatten().double()]
    if most:
        values, ids = _largest(logprobs, most)
        parts += [values.flatten().double(), ids.flatten().double()]
    # float64 holds float32 and token ids exactly, so one tensor carries both.
    numbers = torch.cat(parts).tolist()
    results = [Sampled(int(token)) for token in numbers[: len(rows)]]
    for j, i in enumerate(asked):
        if results[i].token < 0:
            continue
        count = min(rows[i].params.logprobs or 0, most)
        start = len(rows) + len(asked) + j * most
        values_j = numbers[start : start + count]
        ids_j = numbers[start + len(asked) * most :][:count]
        top = tuple((int(t), value) for t, value in zip(ids_j, values_j, strict=True))
        results[i] = Sampled(results[i].token, numbers[len(rows) + j], top)
    return results
