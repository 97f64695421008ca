"""From a row to a prompt that fits the model: too long ones lose their middle.

Instructions stand at both ends of a template, so the first and the last half of the tokens stay.
"""

from collections.abc import Sequence
from typing import Any

from gossamer.engine.prompts import Prompt, encode
from gossamer.evaluation.longbench.data import Row
from gossamer.evaluation.longbench.settings import SETTINGS


def without_middle(ids: Sequence[int], room: int) -> list[int]:
    """At most `room` of the tokens: as many from the start as from the end."""
    if len(ids) <= room:
        return list(ids)
    half = room // 2
    return [*ids[:half], *ids[len(ids) - half :]]


def make_prompt(task: str, row: Row, tokenizer: Any, room: int, *, chat: bool) -> Prompt:
    """The row in its template, at most `room` tokens long.

    chat: as a message to the assistant, which takes some of the room for the chat's own tokens.
    Raises ValueError without a tokenizer, and where the room is too small for any chat.
    """
    if tokenizer is None:
        raise ValueError("the model has no tokenizer; LongBench needs one")
    text = SETTINGS[task].template.format(context=row.context, input=row.input)
    ids = list(tokenizer(text)["input_ids"])
    if not chat:
        return text if len(ids) <= room else without_middle(ids, room)
    return _fitting_chat(text, ids, tokenizer, room)


def _fitting_chat(text: str, ids: list[int], tokenizer: Any, room: int) -> Prompt:
    """The halves are put together as text, whose tokens may be other ones: measured, and cut on."""
    limit = min(room, len(ids))
    while limit >= 2:
        if limit < len(ids):
            half = limit // 2
            text = _decode(tokenizer, ids[:half]) + _decode(tokenizer, ids[len(ids) - half :])
        message = [{"role": "user", "content": text}]
        excess = len(encode(message, tokenizer).ids) - room
        if excess <= 0:
            return message
        limit -= excess
    raise ValueError(f"room for {room} tokens; must be more for a chat of this model")


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True))
