"""From logits to tokens, for a batch of sequences that each have their own SamplingParams.

A row's result depends on that row alone: noise is a function of its seed and position (noise.py),
and whatever is summed over the vocabulary to choose a token is summed in integers, whose order does
not matter. The host waits for the device once, for everything together, and when it wants to.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.engine.noise import gumbel
from gossamer.engine.penalties import adjusted
from gossamer.engine.sampling_params import SamplingParams
from gossamer.engine.sampling_row import SamplingRow
from gossamer.engine.transfer import floats, ints, put

FAST_ARGMAX = (torch.float32, torch.float16, torch.bfloat16)
SMALL_K = 1024  # up to here, finding the largest k beats sorting the vocabulary
WEIGHT_ONE = 2.0**42  # weights are integers in these units: 2**20 of them still add up in int64
TEMPERATURES = (1e-30, 1e30)  # beyond them float32 has only 0 and infinity, and 0 / 0


class Sampled(NamedTuple):
    """token: -1 where none can be chosen, because the logits have a NaN or +inf or are all -inf (or
    banned): the engine fails that request. logprob, top (id, logprob; likeliest first): of the raw
    logits; None and () unless params.logprobs asks for them.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, eq=False)
class Choice:
    """What was sampled, still on the device: tokens int64 [rows], -1 as in `Sampled`.

    numbers: everything that the host wants to know, on its way there; `arrived` is recorded behind
    it on a GPU. asked: (row, likeliest tokens) of those with log probabilities.
    """

    tokens: Tensor
    numbers: Tensor
    arrived: torch.cuda.Event | None
    asked: tuple[tuple[int, int], ...] = ()

    def read(self) -> list[Sampled]:
        """Waits until it is there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        rows, numbers = len(self.tokens), self.numbers.tolist()
        results = [Sampled(int(token)) for token in numbers[:rows]]
        if not self.asked:
            return results
        most = max(count for _, count in self.asked)
        for j, (row, count) in enumerate(self.asked):
            if results[row].token < 0:
                continue
            start = rows + len(self.asked) + j * most
            values = numbers[start : start + count]
            ids = numbers[start + len(self.asked) * most :][:count]
            top = tuple((int(t), value) for t, value in zip(ids, values, strict=True))
            results[row] = Sampled(results[row].token, numbers[rows + j], top)
        return results


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[Sampled]:
    """The next token of each row; as `choose`, and waits for it."""
    return choose(logits, rows).read()


def choose(logits: Tensor, rows: Sequence[SamplingRow]) -> Choice:
    """The next token of each row. logits: [rows, vocab], any float dtype, any device; unchanged.

    The host does not wait for the device. Raises TypeError or ValueError if logits are no such
    tensor.
    """
    _check(logits, rows)
    logits = logits.detach()
    if all(row.plain_greedy for row in rows):
        tokens = _best(logits if logits.dtype in FAST_ARGMAX else logits.float())
        return Choice(tokens, *_sent(tokens))
    logits = logits.float()
    keys = log_weights(logits, rows)
    warm = [i for i, row in enumerate(rows) if not row.params.greedy]
    if warm:
        seeds = ints([rows[i].seed for i in warm], logits.device)
        positions = ints([len(rows[i].output_ids) for i in warm], logits.device)
        noise = gumbel(seeds, positions, logits.shape[1])
        if len(warm) == len(rows):
            keys += noise
        else:
            keys[ints(warm, logits.device)] += noise
    return _report(_best(keys), logits, rows)


def log_weights(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """What is sampled from, float32 [rows, vocab]: logarithms of weights whose maximum is 1.

    -inf: cannot be sampled. Rows that nothing can be sampled of have a NaN or are -inf throughout.
    Greedy rows are not restricted: their maximum is the same.
    """
    wanted = adjusted(logits, rows)
    heat = [1.0 if row.params.greedy else row.params.temperature for row in rows]
    heat = [min(max(t, TEMPERATURES[0]), TEMPERATURES[1]) for t in heat]
    # Less the maximum before the division: a tiny temperature then overflows to -inf only.
    z = wanted - wanted.amax(-1, keepdim=True)
    z /= floats(heat, z.device)[:, None]
    small: list[int] = []
    full: list[int] = []
    for i, row in enumerate(rows):
        if not row.params.greedy and (row.params.top_k or row.params.top_p < 1):
            (small if 0 < row.params.top_k <= SMALL_K else full).append(i)
    for group in (small, full):
        if group:
            at = ints(group, z.device)
            z[at] = _restrict(z[at], [rows[i].params for i in group])
    if any(row.params.min_p and not row.params.greedy for row in rows):
        floors = [
            math.log(row.params.min_p) if row.params.min_p and not row.params.greedy else -math.inf
            for row in rows
        ]
        z.masked_fill_(z < floats(floors, z.device)[:, None], -math.inf)
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


def _best(keys: Tensor) -> Tensor:
    """int64 [rows]: the index of the maximum, the lowest if there are several, or -1."""
    best = keys.argmax(-1)  # a NaN counts as the largest of all
    found = keys.gather(1, best[:, None]).squeeze(1).isfinite()
    return best.masked_fill_(~found, -1)


# ---- top_k and top_p --------------------------------------------------------------------


def _restrict(z: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """z [rows, vocab], whose maxima are 0, with -inf for what top_k and top_p leave out."""
    vocab = z.shape[1]
    kept = [min(p.top_k, vocab) if p.top_k else vocab for p in params]
    values, ids = _largest(z, max(kept))
    ranks = torch.arange(values.shape[1], device=z.device)
    in_k = ranks < ints(kept, z.device)[:, None]
    # Integer sums are exact, so neither the device nor the batch can move the edge of top_p.
    weights = (values.double().exp() * WEIGHT_ONE).to(torch.int64) * in_k
    before = weights.cumsum(-1) - weights
    top_p = torch.tensor([[p.top_p] for p in params], dtype=torch.float64)
    top_p = put(top_p, z.device)
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


def likeliest(logprobs: Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    """The `count` likeliest tokens of each row, likeliest first. Waits for the device."""
    values, ids = (each.tolist() for each in _largest(logprobs, count))
    return [tuple(zip(*row, strict=True)) for row in zip(ids, values, strict=True)]


# ---- results ----------------------------------------------------------------------------


def _report(tokens: Tensor, logits: Tensor, rows: Sequence[SamplingRow]) -> Choice:
    """Tokens and what log probabilities the rows ask for, in one transfer."""
    vocab = logits.shape[1]
    wanted = [(i, row.params.logprobs) for i, row in enumerate(rows)]
    asked = tuple((i, min(count, vocab)) for i, count in wanted if count is not None)
    if not asked:
        return Choice(tokens, *_sent(tokens))
    at = ints([i for i, _ in asked], logits.device)
    logprobs = logits[at].log_softmax(-1)
    own = logprobs.gather(1, tokens[at].clamp(min=0)[:, None])
    parts = [tokens.double(), own.flatten().double()]
    if most := max(count for _, count in asked):
        values, ids = _largest(logprobs, most)
        parts += [values.flatten().double(), ids.flatten().double()]
    # float64 holds float32 and token ids exactly, so one tensor carries both.
    return Choice(tokens, *_sent(torch.cat(parts)), asked)


def _sent(numbers: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A copy on its way to the host, and what tells when it has arrived."""
    if numbers.device.type != "cuda":
        return numbers, None
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(numbers.device))
    return host, arrived
