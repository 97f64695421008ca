"""Text from tokens, one at a time: what of it may be shown now, and whether a stop string ended it.

Two things make that more than a call of decode. Some tokens hold parts of characters, and some
tokenizers write or drop a space depending on what precedes; so text is decoded together with a few
tokens before it. And what may be the beginning of a stop string must wait until it is clear.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from gossamer.engine.sampling_params import SamplingParams

CONTEXT = 5  # prompt tokens that the first output token is decoded with
INCOMPLETE = "\ufffd"  # how an incomplete character is decoded
WAITING = 8  # tokens; more than any character has bytes, so waiting longer is not for one


class Tokenizer(Protocol):
    """What is needed of a Hugging Face tokenizer."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str: ...


def decode_of(tokenizer: Tokenizer) -> Callable[[list[int]], str]:
    """Token ids to text without special tokens.

    transformers' decode takes 4.5 us for the 1.9 us of the tokenizers library; where it adds
    nothing, the library is called.
    """
    library = getattr(tokenizer, "backend_tokenizer", None)
    if library is None or getattr(tokenizer, "clean_up_tokenization_spaces", True):
        return partial(tokenizer.decode, skip_special_tokens=True)
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - loaded, as it has a backend

    kind = type(tokenizer)
    for name in ("decode", "_decode"):
        if getattr(kind, name) is not getattr(PreTrainedTokenizerFast, name):
            return partial(tokenizer.decode, skip_special_tokens=True)
    return partial(library.decode, skip_special_tokens=True)


class Detokenizer:
    """The visible text of one output, as its tokens come.

    The results of all append() calls and of finish() together are `text`: what
    tokenizer.decode(output, skip_special_tokens=True) gives, cut at the first stop string.
    First is what is complete first, and of several that end there the longest. As for tokens,
    stop strings count from params.min_tokens tokens on. Each call decodes a bounded number.
    shown: special tokens that are text all the same, as they mark parts of it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        shown: Mapping[int, str] | None = None,
    ) -> None:
        self._decoder = _Decoder(tokenizer, prompt_ids)
        self._marks = shown or {}
        self._params = params
        self._stops = tuple(params.stop)
        self._tokens = 0
        self._shown: list[str] = []
        self._held = ""
        self._finished = False
        self._stopped: str | None = None

    @property
    def text(self) -> str:
        """All that was returned so far."""
        return "".join(self._shown)

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the output."""
        return self._stopped

    def append(self, token_id: int) -> str:
        """The text that may be shown now; "" once stopped. Raises RuntimeError after finish()."""
        if self._finished:
            raise RuntimeError("append() after finish(); the output has ended")
        if self._stopped is not None:
            return ""
        self._tokens += 1
        if token_id in self._marks:
            text = self._decoder.finish() + self._marks[token_id]
        else:
            text = self._decoder.append(token_id)
        return self._show(text, last=False)

    def finish(self) -> str:
        """What was held back, for the output has no more tokens. The second time, nothing."""
        if self._finished or self._stopped is not None:
            self._finished = True
            return ""
        self._finished = True
        return self._show(self._decoder.finish(), last=True)

    def _show(self, new: str, last: bool) -> str:
        """Take new text in; return and keep what of it and of the held text is final."""
        text = self._held + new
        match = self._match(text) if new and self._tokens >= self._params.min_tokens else None
        if match is not None:
            start, self._stopped = match
            whole = start + len(self._stopped)
            end = whole if self._params.include_stop_str_in_output else start
        else:
            end = len(text) - (0 if last else _overlap(text, self._stops))
        self._held = "" if match is not None else text[end:]
        if end:
            self._shown.append(text[:end])
        return text[:end]

    def _match(self, text: str) -> tuple[int, str] | None:
        """Where the first stop string starts that ends in the new part, behind the held one."""
        found = []
        for stop in self._stops:
            start = text.find(stop, max(0, len(self._held) - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        return min(found)[1:] if found else None


class _Decoder:
    """Tokens to text, without stop strings. Invariant: all text of _ids[:_read] was returned.

    _ids is a window of the sequence. Its first _read tokens are only there because the text of the
    others may depend on them. Both ends are places where no character is cut in two.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._decode = decode_of(tokenizer)
        self._ids = list(prompt_ids[-CONTEXT:])
        self._read = len(self._ids)
        text = self._decode(self._ids)
        # A character that the prompt leaves incomplete belongs to the output, if that completes it.
        self._prompt_is_open = text.endswith(INCOMPLETE)
        self._known = len(text.removesuffix(INCOMPLETE))

    def append(self, token_id: int) -> str:
        """The text that is complete with this token."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if not text.endswith(INCOMPLETE) and len(text) > self._known:
            return self._advance(len(self._ids), text)
        if len(self._ids) - self._read <= WAITING:
            return ""
        if not text.endswith(INCOMPLETE):
            self._ids.pop()  # without text, such as special tokens; the window must stay bounded
            return ""
        # More than one character's bytes, so not valid UTF-8: only its end may become a character.
        for cut in range(len(self._ids) - 1, len(self._ids) - 4, -1):
            head = self._decode(self._ids[:cut])
            if head + self._decode(self._ids[cut:]) == text:  # the cut is not inside a character
                return self._advance(cut, head)
        return self._advance(len(self._ids), text)

    def finish(self) -> str:
        """The text of the tokens that waited for more."""
        return self._advance(len(self._ids), self._decode(self._ids))

    def _advance(self, read: int, text: str) -> str:
        """Return what is new in `text`, that of _ids[:read]; the tokens read before may go."""
        new = text[self._known :]
        if self._prompt_is_open:
            new = new.removeprefix(INCOMPLETE)
            self._prompt_is_open = False
        del self._ids[: self._read]
        self._read = read - self._read
        self._known = len(self._decode(self._ids[: self._read]))
        return new


def _overlap(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
