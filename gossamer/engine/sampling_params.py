"""How the tokens of one request are chosen, and when the request ends."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.engine.structured_outputs import StructuredOutputs

MAX_LOGPROBS = 20
MAX_N = 128
MAX_BIAS = 100.0
MAX_TOKENS = 1 << 40  # so that positions stay integers of 64 bits
MAX_SEED = (1 << 63) - 1
FLAGS = ("include_stop_str_in_output", "ignore_eos", "prompt_logprobs", "detokenize")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The names, defaults and meanings that users of vLLM and of the OpenAI API know.

    The order is: penalties, logit_bias, min_tokens, structured_outputs, temperature, top_k, top_p,
    min_p. Raises TypeError or
    ValueError that names the field, its value and what is valid.

    temperature: divides the logits; 0 is greedy. top_k: sample from the k likeliest; 0 (or -1) is
    off. top_p: from the fewest tokens whose probability reaches it. min_p: from tokens at least
    this probable, relative to the most probable one.
    repetition_penalty: above 1 makes tokens of prompt and output less likely (positive logits are
    divided by it, others multiplied). presence_penalty, frequency_penalty: subtracted from the
    logits of output tokens, once and per occurrence.
    logit_bias: by token id, -100 to 100, added to the logits.
    seed: the same seed gives the same output; None for a fresh one.
    stop: strings that end the output; the text is cut before them, or after them with
    include_stop_str_in_output. stop_token_ids: tokens that do. ignore_eos: the model's own do not.
    max_tokens: None for as many as the context holds. min_tokens: nothing ends the output before.
    logprobs: how many of the likeliest tokens to report besides the sampled one, with the log
    probabilities that the model gave them (before everything above); None reports nothing.
    prompt_logprobs: whether to report the log probability of each prompt token, too.
    n: how many outputs.
    structured_outputs: a schema, regex, choice or grammar that every output is made to match.
    detokenize: False for outputs of token ids alone, without text and without stop strings.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 256
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: bool = False
    n: int = 1
    detokenize: bool = True
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        self._check_reals()
        self._check_integers()
        for name in FLAGS:
            if type(getattr(self, name)) is not bool:
                raise TypeError(f"{name} is {getattr(self, name)!r}; must be True or False")
        object.__setattr__(self, "stop", _strings("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        self._check_structured()
        if self.stop and not self.detokenize:
            raise ValueError(f"stop is {self.stop}; must be empty with detokenize=False")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens}; must be 0 to max_tokens, {self.max_tokens}"
            )

    def _check_reals(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, math.inf),
            ("min_p", 0.0, 1.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
        ):
            value = _real(name, getattr(self, name))
            if not low <= value <= high or value == math.inf:
                valid = f"{low} to {high}" if high < math.inf else f"finite and at least {low}"
                raise ValueError(f"{name} is {value}; must be {valid}")
            object.__setattr__(self, name, value)
        top_p = _real("top_p", self.top_p)
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p is {top_p}; must be above 0.0, to 1.0")
        object.__setattr__(self, "top_p", top_p)
        penalty = _real("repetition_penalty", self.repetition_penalty)
        if not 0 < penalty < math.inf:
            raise ValueError(f"repetition_penalty is {penalty}; must be finite and above 0.0")
        object.__setattr__(self, "repetition_penalty", penalty)

    def _check_integers(self) -> None:
        for name, low, high, optional in (
            ("top_k", -1, MAX_TOKENS, False),
            ("seed", -MAX_SEED - 1, MAX_SEED, True),
            ("max_tokens", 1, MAX_TOKENS, True),
            ("min_tokens", 0, MAX_TOKENS, False),
            ("logprobs", 0, MAX_LOGPROBS, True),
            ("n", 1, MAX_N, False),
        ):
            value = getattr(self, name)
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                wanted = "an int or None" if optional else "an int"
                raise TypeError(f"{name} is {value!r}; must be {wanted}, {low} to {high}")
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}; must be {low} to {high}")
        if self.top_k == -1:  # how vLLM's users switch it off
            object.__setattr__(self, "top_k", 0)

    def _check_structured(self) -> None:
        wanted: Any = self.structured_outputs
        if wanted is None:
            return
        if not isinstance(wanted, StructuredOutputs):
            kind = type(wanted).__name__
            raise TypeError(f"structured_outputs is {kind}; must be StructuredOutputs or None")
        if self.ignore_eos:
            raise ValueError("ignore_eos is True; must be False with structured_outputs")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without chance."""
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Whether tokens that are there already change the logits."""
        neutral = self.repetition_penalty == 1 and self.presence_penalty == 0
        return not neutral or self.frequency_penalty != 0


def _real(name: str, value: Any) -> float:
    """The value as float; TypeError unless it is a number, ValueError for NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}; must be a float or an int")
    try:
        real = float(value)
    except OverflowError:  # an integer beyond floats; let the range check name it
        real = math.inf if value > 0 else -math.inf
    if math.isnan(real):
        raise ValueError(f"{name} is nan; must be a number")
    return real


def _bias(value: Any) -> dict[int, float] | None:
    """None also for an empty one."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or any(type(token) is not int for token in value):
        raise TypeError(f"logit_bias is {value!r:.80}; must be a dict from token ids to numbers")
    found = {token: _real(f"logit_bias {token}", bias) for token, bias in value.items()}
    for token, bias in found.items():
        if not 0 <= token <= MAX_TOKENS:
            raise ValueError(f"logit_bias has token {token}; must be ids from 0 on")
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ValueError(f"logit_bias {token} is {bias}; must be {-MAX_BIAS:g} to {MAX_BIAS:g}")
    return found or None


def _strings(name: str, value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(s, str) for s in strings):
        raise TypeError(f"{name} is {value!r}; must be a str or a list or tuple of them")
    if "" in strings:
        raise ValueError(f"{name} is {value!r}; must have no empty string, which is everywhere")
    return tuple(strings)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or any(type(token) is not int for token in value):
        raise TypeError(f"{name} is {value!r}; must be a list or tuple of ints")
    if any(not 0 <= token <= MAX_TOKENS for token in value):
        raise ValueError(f"{name} is {value!r}; must be token ids, 0 to {MAX_TOKENS}")
    return tuple(value)
