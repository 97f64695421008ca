"""What sampling needs to know of a sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gossamer.engine.grammars import Matcher
from gossamer.engine.sampling_params import MAX_SEED, SamplingParams


@dataclass(frozen=True, eq=False)
class SamplingRow:
    """What the sampler needs to know of a sequence; its next token has position len(output_ids).

    One object serves all steps of a sequence: output_ids may be a list that grows. prompt_ids must
    not change, since its distinct tokens are remembered. seed: 64 bits, signed; ValueError
    otherwise. eos_ids: banned, with params.stop_token_ids, while there are fewer than min_tokens.
    matcher: where the sequence is in its grammar, if it has one.
    """

    params: SamplingParams
    seed: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    eos_ids: tuple[int, ...] = ()
    matcher: Matcher | None = None

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

    @cached_property
    def _ever_plain(self) -> bool:
        p = self.params
        changed = p.penalises or p.logit_bias is not None or self.matcher is not None
        return p.greedy and not changed and p.logprobs is None

    @property
    def plain_greedy(self) -> bool:
        """Whether the largest of the logits is all there is to know."""
        return self._ever_plain and (not self.params.min_tokens or not self.banned_ids)

    @property
    def banned_ids(self) -> tuple[int, ...]:
        early = len(self.output_ids) < self.params.min_tokens
        if early and self.matcher is not None and self.matcher.complete:
            return ()  # nothing else can follow
        return (*self.eos_ids, *self.params.stop_token_ids) if early else ()
