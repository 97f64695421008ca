"""Text to tokens and back."""

import asyncio
import copy
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from gossamer.engine.prompts import Encoded, Prompt, encode
from gossamer.server.errors import APIError

T = TypeVar("T")
INCOMPLETE = "\ufffd"
SUSPICIOUS, SAMPLE = 12, 8  # characters per token of the context
SLACK = 16  # tokens by which a text that is cut may differ
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how SentencePiece names tokens of one byte


class Tokens:
    """Prompts are encoded in a thread of its own, where a long one does not stop the event loop.

    decoder: a copy for the event loop, as a tokenizer is not for two threads at once.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.decoder = tokenizer, copy.deepcopy(tokenizer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gossamer tokenizer")
        self.piece = lru_cache(maxsize=1 << 16)(self._piece)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    async def encode(self, prompt: Prompt, longest: int) -> tuple[int, ...]:
        """Token ids; APIError for what is no prompt of at most `longest` tokens."""
        return (await self.render(prompt, longest)).ids

    async def render(
        self, prompt: Prompt, longest: int, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Encoded:
        """As `encode`, with the text of a chat by the model's template. tools: of a chat."""
        text = prompt if isinstance(prompt, str) else _contents(prompt)
        try:
            await self._refuse_endless(text, longest)
            return await self._in_thread(lambda: encode(prompt, self.tokenizer, tools))
        except (ValueError, TypeError) as error:
            raise APIError(400, str(error), param="prompt") from None

    def special(self, marks: Sequence[str]) -> dict[str, int]:
        """Those of the marks that are one token each, which is not shown as text."""
        names = set(getattr(self.decoder, "all_special_tokens", ()))
        known = {mark for mark in marks if mark in names}
        return {mark: int(self.decoder.convert_tokens_to_ids(mark)) for mark in known}

    async def plain(self, text: str, *, special: bool) -> list[int]:
        """Of text alone, with or without the tokens that begin a sequence."""
        tokenizer = self._required()
        call: Callable[[], list[int]] = lambda: list(  # noqa: E731
            tokenizer(text, add_special_tokens=special)["input_ids"]
        )
        return await self._in_thread(call)

    async def decode(self, ids: Sequence[int]) -> str:
        tokenizer = self._required()
        return str(await self._in_thread(lambda: tokenizer.decode(list(ids))))

    def _required(self) -> Any:
        if self.tokenizer is None:
            raise APIError(400, "the model has no tokenizer")
        return self.tokenizer

    async def _refuse_endless(self, text: str, longest: int) -> None:
        """What cannot fit is refused without the second that its tokens may take.

        Either it is longer than that number of the longest tokens, or its beginning is enough.
        """
        if self.tokenizer is None or len(text) <= SUSPICIOUS * longest:
            return
        fits = len(text) <= longest * self._longest_piece
        if fits:
            begin = text[: SAMPLE * longest]
            fits = len(await self.plain(begin, special=False)) <= longest + SLACK
        if not fits:
            raise APIError(
                400,
                f"the prompt has {len(text)} characters, more than {longest} tokens can hold",
                param="prompt",
                code="context_length_exceeded",
            )

    @cached_property
    def _longest_piece(self) -> int:
        return max((len(piece) for piece in self.tokenizer.get_vocab()), default=1)

    def _piece(self, token: int) -> tuple[str, list[int]]:
        """The text of one token, and its bytes: some tokens are parts of characters."""
        if self.decoder is None:
            return f"token_id:{token}", []
        text = str(self.decoder.decode([token]))
        if INCOMPLETE not in text:
            return text, list(text.encode())
        name = str(self.decoder.convert_ids_to_tokens(token))
        if match := BYTE.fullmatch(name):
            return text, [int(match[1], 16)]
        table = _byte_table()
        if all(character in table for character in name):
            return text, [table[character] for character in name]
        return text, list(text.encode())

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def _contents(prompt: Prompt) -> str:
    """What is said in a chat; nothing for token ids."""
    return "".join(m["content"] for m in prompt if isinstance(m, Mapping))


@lru_cache(maxsize=1)
def _byte_table() -> Mapping[str, int]:
    """How byte-level BPE (GPT-2's and its heirs) writes bytes in its vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}
