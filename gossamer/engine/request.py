"""A request inside the engine: its sequences, and how their tokens become outputs."""

from dataclasses import dataclass, field

from torch import Tensor

from gossamer.engine.detokenizer import Detokenizer, Tokenizer
from gossamer.engine.grammars import Matcher
from gossamer.engine.outputs import (
    CompletionOutput,
    Delta,
    FinishReason,
    RequestOutput,
    TokenLogprobs,
)
from gossamer.engine.sampler import Sampled, likeliest
from gossamer.engine.sampling_row import SamplingRow
from gossamer.engine.sequence import Sequence
from gossamer.engine.transfer import ints

SCORED_AT_ONCE = 256  # rows of float32 logits: 50 MB with a vocabulary of 49,152


@dataclass(eq=False)
class Completion:
    """One sequence of a request, how it is sampled, and its output so far."""

    seq: Sequence
    row: SamplingRow
    output: CompletionOutput
    request: RequestOutput
    detokenizer: Detokenizer | None
    eos_ids: tuple[int, ...] = ()

    def score(self, start: int, logits: Tensor) -> None:
        """Note what logits [tokens, vocab] after prompt tokens start onwards say of the next."""
        assert self.request.prompt_logprobs is not None, "only where it was asked for"
        count = min(self.seq.params.logprobs or 0, logits.shape[1])
        targets = self.seq.prompt_ids[start + 1 : start + 1 + len(logits)]
        for first in range(0, len(targets), SCORED_AT_ONCE):
            ids = ints(targets[first : first + SCORED_AT_ONCE], logits.device)
            rows = logits[first : first + len(ids)].float().log_softmax(-1)
            found = rows.gather(1, ids[:, None]).flatten().tolist()
            begin = start + 1 + first
            self.request.prompt_logprobs[begin : begin + len(found)] = found
            if self.request.prompt_top is not None:
                self.request.prompt_top[begin : begin + len(found)] = likeliest(rows, count)

    def take(self, sampled: Sampled) -> Delta:
        """Add the sampled token and decide whether that was the last."""
        refusal = self._refusal(sampled.token)
        if refusal is not None:
            return refusal
        token, output, params = sampled.token, self.output, self.seq.params
        self.seq.output_ids.append(token)
        output.token_ids.append(token)
        if output.index == 0:
            self.request.cached_tokens = self.seq.cached
        if output.logprobs is not None and sampled.logprob is not None:
            output.logprobs.append(TokenLogprobs(token, sampled.logprob, sampled.top))
        # A grammar that is complete allows nothing but the end, however few tokens there are.
        enough = len(output.token_ids) >= params.min_tokens or self.row.matcher is not None
        if enough and token in params.stop_token_ids:
            return self.end("stop", [token], stop_reason=token)
        if enough and token in self.eos_ids:
            return self.end("stop", [token])
        text = "" if self.detokenizer is None else self.detokenizer.append(token)
        output.text += text
        if self.detokenizer is not None and self.detokenizer.stopped is not None:
            return self.end("stop", [token], text, stop_reason=self.detokenizer.stopped)
        if len(output.token_ids) >= self.seq.limit:
            return self.end("length", [token], text)
        return Delta(self.request, output.index, text, [token])

    def _refusal(self, token: int) -> Delta | None:
        """The end of an output that has no next token, or whose grammar cannot go on."""
        matcher = self.row.matcher
        if token >= 0 and matcher is not None:
            matcher.take(token, ends=token in self.eos_ids)
        if matcher is not None and matcher.error is not None:
            self.output.refused = True
            return self.end("error", error=matcher.error)
        if token < 0:
            return self.end("error", error="the model's logits are NaN, or no token is allowed")
        return None

    def end(
        self,
        reason: FinishReason,
        token_ids: list[int] | None = None,
        text: str = "",
        stop_reason: str | int | None = None,
        error: str | None = None,
    ) -> Delta:
        """Finish the output; what was held back of its text comes out."""
        output = self.output
        if self.detokenizer is not None:
            rest = self.detokenizer.finish()
            output.text += rest
            text += rest
            if reason == "length" and self.detokenizer.stopped is not None:
                reason, stop_reason = "stop", self.detokenizer.stopped  # it was held back till now
        output.finish_reason, output.stop_reason, output.error = reason, stop_reason, error
        return Delta(self.request, output.index, text, token_ids or [], reason)


@dataclass(eq=False)
class Request:
    """A request and those of its completions that are not finished, by their sequences."""

    output: RequestOutput
    running: dict[Sequence, Completion] = field(default_factory=dict)

    def start(
        self,
        seq: Sequence,
        tokenizer: Tokenizer | None,
        eos_ids: tuple[int, ...],
        matcher: Matcher | None = None,
    ) -> Completion:
        """Add the next of the n completions."""
        params = seq.params
        eos = () if params.ignore_eos else eos_ids
        logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        output = CompletionOutput(seq.index, logprobs=logprobs)
        self.output.outputs.append(output)
        completion = Completion(
            seq,
            SamplingRow(params, seq.seed, seq.prompt_ids, seq.output_ids, eos, matcher),
            output,
            self.output,
            None if tokenizer is None else Detokenizer(tokenizer, params, seq.prompt_ids),
            eos,
        )
        self.running[seq] = completion
        return completion
