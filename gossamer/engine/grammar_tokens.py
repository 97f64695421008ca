"""A model's tokens as llguidance wants them: the bytes of each, and how text is cut into them."""

from collections.abc import Sequence
from typing import Any

INCOMPLETE = "\ufffd"
SPECIAL = b"\xff"  # no byte of UTF-8; llguidance's sign for tokens that are no text


def llguidance() -> Any:
    """The package. ImportError that says how to get it."""
    try:
        import llguidance as found  # noqa: PLC0415 - an optional package
    except ImportError:
        raise ImportError(
            "structured outputs need llguidance: pip install 'gossamer[structured]'"
        ) from None
    return found


def tokens_for(tokenizer: Any, vocab_size: int, eos_ids: Sequence[int]) -> Any:
    """llguidance's tokenizer, for logits of this size or more.

    The bytes of byte-level BPE and of SentencePiece are read from the library's own file; tokens of
    others are decoded one by one. Raises ValueError for what it cannot read.
    """
    guidance = llguidance()
    size = max(vocab_size, len(tokenizer))
    eos = [token for token in eos_ids if token < len(tokenizer)]
    if not eos:
        raise ValueError(f"the tokenizer has no token {list(eos_ids)}, which ends a text")
    library = getattr(tokenizer, "backend_tokenizer", None)
    if library is not None:
        try:
            return guidance.LLTokenizer(library.to_str(), n_vocab=size, eos_token=eos)
        except ValueError:
            pass  # decoders that it does not know
    return guidance.LLTokenizer(_OneByOne(tokenizer, eos), n_vocab=size, eos_token=eos)


class _OneByOne:
    """Any tokenizer whose tokens have a text each; see llguidance.TokenizerWrapper."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Any, eos_ids: list[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_ids[0]
        special = {*tokenizer.all_special_ids, *eos_ids}
        self.special_token_ids = sorted(special)
        self.tokens = [self._bytes(token, token in special) for token in range(len(tokenizer))]

    def __call__(self, text: str | bytes) -> list[int]:
        """Nothing for what these tokens cannot write: unknown ones would be forced otherwise."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        text = data.decode("utf-8", "replace")
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return ids if b"".join(self.tokens[token] for token in ids) == data else []

    def _bytes(self, token: int, special: bool) -> bytes:
        """Nothing for a part of a character, so that it is never allowed."""
        name = str(self._tokenizer.convert_ids_to_tokens(token))
        if special:
            return SPECIAL + name.encode()
        text = str(self._tokenizer.decode([token]))
        return b"" if INCOMPLETE in text else text.encode()
