"""What changes logits before a token is chosen: penalties, biases, tokens that are not allowed."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gossamer.engine.grammars import fill
from gossamer.engine.sampling_row import SamplingRow
from gossamer.engine.transfer import floats, ints, put


def adjusted(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Float32 logits with penalties, biases and bans; not a copy where there are none."""
    vocab, device = logits.shape[1], logits.device
    # An id beyond the vocabulary cannot be sampled; as an index it would hit another row.
    banned = [
        i * vocab + token
        for i, row in enumerate(rows)
        for token in row.banned_ids
        if 0 <= token < vocab
    ]
    penalised = any(row.params.penalises for row in rows)
    biased = any(row.params.logit_bias for row in rows)
    held = [i for i, row in enumerate(rows) if row.matcher is not None]
    if not (penalised or banned or biased or held):
        return logits.float()
    flat = logits.to(torch.float32, copy=True).contiguous().view(-1)
    if penalised:
        _penalise(flat, vocab, rows)
    if biased:
        _bias(flat, vocab, rows)
    if banned:
        flat.index_fill_(0, ints(banned, device), -math.inf)
    found = flat.view(logits.shape)
    if held:
        _hold(found, held, rows)
    return found


def _bias(flat: Tensor, vocab: int, rows: Sequence[SamplingRow]) -> None:
    """In place."""
    entries = [
        (i * vocab + token, bias)
        for i, row in enumerate(rows)
        for token, bias in (row.params.logit_bias or {}).items()
        if token < vocab
    ]
    at = ints([place for place, _ in entries], flat.device)
    flat[at] += floats([bias for _, bias in entries], flat.device)


def _hold(logits: Tensor, held: list[int], rows: Sequence[SamplingRow]) -> None:
    """-inf, in place, for tokens that the grammars of the rows `held` do not allow.

    The host fills bits while the device computes the logits; they are a bit per token on their way.
    """
    vocab, device = logits.shape[1], logits.device
    bits = fill([matcher for i in held if (matcher := rows[i].matcher) is not None], vocab)
    packed = ~bits.view(np.uint8)
    if device.type == "cpu":  # a tenth of the time of torch's shifts
        each_bit = np.unpackbits(packed, axis=1, count=vocab, bitorder="little")
        banned = torch.from_numpy(each_bit.view(np.bool_))
    else:
        each = put(torch.from_numpy(packed), device)[:, :, None]
        each = each >> torch.arange(8, dtype=torch.uint8, device=device)
        banned = (each & 1).flatten(1)[:, :vocab].bool()
    if len(held) == len(rows):
        logits.masked_fill_(banned, -math.inf)
    else:
        at = ints(held, device)
        logits[at] = logits[at].masked_fill_(banned, -math.inf)


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
    at = put(torch.cat(seen), flat.device)
    by = put(by, flat.device)
    old = flat[at]
    flat[at] = torch.where(old > 0, old / by, old * by)
    flat[ints(output, flat.device)] -= floats(less, flat.device)
