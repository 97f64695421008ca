"""Peers as subjects of an evaluation: a transformers model with a cache method in effect."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from gossamer.engine.prompts import Prompt, encode
from gossamer.evaluation.peers.method import Method, MethodAttention, dense_bytes
from gossamer.integrations.transformers import attention_function, kv_shape
from gossamer.kv.extras import import_extra

CHUNK = 256  # tokens whose log-softmax is taken at once: [CHUNK, vocabulary] in float32

# The sequence's next tokens [T] -> logits [T or 1, vocabulary], of the last ones.
Step = Callable[[Tensor], Tensor]


class Peer(ABC):
    """A Subject on a model of `gossamer.integrations.transformers.load_model`.

    Likelihoods are teacher-forced. A peer that compresses at the prompt's end takes the first half
    of a window as its prompt, which it reads exactly: `first_scored` says from which token on
    likelihoods show the method, and a comparison should count only those, on both sides.
    """

    compresses_prompts = False

    def __init__(self, model: Any, tokenizer: Any, name: str, bytes_per_token: float) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.name, self.bytes_per_token = name, bytes_per_token
        self.share = bytes_per_token / dense_bytes(kv_shape(model))

    def first_scored(self, tokens: int) -> int:
        """Index of the first token of such a window whose likelihood depends on the method."""
        return max(tokens // 2 + 1, 1) if self.compresses_prompts else 1

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt], max_tokens: Sequence[int]) -> list[str]:
        """Greedy continuations; the method is in effect from the first new token on.

        Raises ValueError for prompts that cannot be encoded or do not fit the model's context.
        """
        if len(prompts) != len(max_tokens):
            raise ValueError(f"{len(prompts)} prompts and {len(max_tokens)} max_tokens; must agree")
        encoded = [encode(prompt, self.tokenizer).ids for prompt in prompts]
        for ids, new in zip(encoded, max_tokens, strict=True):
            check_tokens(ids, new, self.model)
        if self.tokenizer is None:
            raise ValueError("the model has no tokenizer, without which there is no text")
        stops = stop_ids(self.model)
        texts = []
        for ids, new in zip(encoded, max_tokens, strict=True):
            prompt = torch.tensor(ids, device=self.model.device)
            with self._decoding(len(ids)) as step:
                found = greedy(step, prompt, new, stops)
            texts.append(self.tokenizer.decode(found, skip_special_tokens=True))
        return texts

    @torch.inference_mode()
    def loglikelihood(self, windows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log probabilities of tokens 1, 2, ... of each window; see `first_scored`."""
        for window in windows:
            check_tokens(window, 0, self.model)
        found = []
        for window in windows:
            ids = torch.tensor(list(window), device=self.model.device)
            logits = self._logits(ids)[: len(ids) - 1]
            found.append(log_probabilities(logits, ids[1:]) if len(ids) > 1 else [])
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027
        """Nothing to close: the model is its owner's, and other peers may go on with it."""

    @abstractmethod
    def _decoding(self, prompt: int) -> AbstractContextManager[Step]:
        """A context with the step function of a new sequence that begins with `prompt` tokens."""

    @abstractmethod
    def _logits(self, ids: Tensor) -> Tensor:
        """[T, vocabulary] of the teacher-forced window ids [T]."""


class PackagePeer(Peer):
    """A cache of another package, which the model's own attention reads.

    Raises ImportError where `reason` says why the package cannot be used.
    """

    settings: Any

    def __init__(self, model: Any, tokenizer: Any, name: str, settings: Any, reason: str) -> None:
        if reason:
            raise ImportError(f"{name}: unavailable: {reason}")
        super().__init__(model, tokenizer, name, settings.bytes_per_token(kv_shape(model)))
        self.settings = settings

    @contextmanager
    def _decoding(self, prompt: int) -> Iterator[Step]:
        yield self._step(last=1)

    @abstractmethod
    def _step(self, last: int) -> Step:
        """Of a new cache; logits of the `last` tokens, 0 for all."""


class MethodPeer(Peer):
    """A simulated method: the model keeps everything, its attention sees what the rule leaves."""

    def __init__(self, model: Any, tokenizer: Any, name: str, method: Method) -> None:
        super().__init__(model, tokenizer, name, method.bytes_per_token(kv_shape(model)))
        self.method = method
        self.compresses_prompts = method.at_prompt_end

    @contextmanager
    def _decoding(self, prompt: int) -> Iterator[Step]:
        cache = import_extra("transformers").DynamicCache()

        def step(ids: Tensor) -> Tensor:
            output = self.model(ids[None], past_key_values=cache, use_cache=True, logits_to_keep=1)
            logits: Tensor = output.logits[0]
            return logits

        read = max(prompt - self.method.before, 1)
        with attention_function(self.model, MethodAttention(self.method, read, prompt)):
            yield step

    def _logits(self, ids: Tensor) -> Tensor:
        prompt = len(ids) // 2 if self.compresses_prompts else 0
        length = prompt or len(ids)
        with attention_function(self.model, MethodAttention(self.method, prompt, length)):
            logits: Tensor = self.model(ids[None], use_cache=False).logits[0]
        return logits


# ---- greedy decoding and log probabilities, one sequence at a time -------------------------------


def stop_ids(model: Any) -> frozenset[int]:
    """The tokens that end a text."""
    config = getattr(model, "generation_config", None) or model.config
    ids = config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset(ids if isinstance(ids, list | tuple) else [ids])


def greedy(step: Step, prompt: Tensor, max_tokens: int, stops: frozenset[int]) -> list[int]:
    """At most max_tokens tokens, each the likeliest; the stop token is not among them."""
    found: list[int] = []
    tokens = prompt
    while len(found) < max_tokens:
        token = int(step(tokens)[-1].argmax())
        if token in stops:
            break
        found.append(token)
        tokens = torch.tensor([token], device=prompt.device)
    return found


def log_probabilities(logits: Tensor, targets: Tensor) -> list[float]:
    """Of targets [T] by logits [T, vocabulary], in float32."""
    found: list[float] = []
    for part, ids in zip(logits.split(CHUNK), targets.split(CHUNK), strict=True):
        p = part.float().log_softmax(-1)
        found += p.gather(1, ids[:, None]).flatten().tolist()
    return found


def check_tokens(ids: Sequence[int], new: int, model: Any) -> None:
    """Some tokens, that fit the model's context and vocabulary; ValueError otherwise."""
    if not ids:
        raise ValueError("a prompt or window has 0 tokens; must have at least 1")
    if new < 0:
        raise ValueError(f"max_tokens is {new}; must be >= 0")
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and len(ids) + new > longest:
        raise ValueError(
            f"{len(ids)} tokens and {new} new ones; must be at most {longest}, the model's context"
        )
    vocabulary = model.config.vocab_size
    if not all(0 <= i < vocabulary for i in (min(ids), max(ids))):
        raise ValueError(f"token ids {min(ids)} to {max(ids)}; must be 0 to {vocabulary - 1}")
