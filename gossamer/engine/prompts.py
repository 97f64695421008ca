"""What people pass as prompts: text, token ids, chats, or a list of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

Chat = Sequence[Mapping[str, Any]]
Prompt = str | Sequence[int] | Chat


class PromptTooLongError(ValueError):
    """A prompt that leaves no room for an output in the context."""


@dataclass(frozen=True)
class Encoded:
    """Token ids, and the text they come from where there is one."""

    ids: tuple[int, ...]
    text: str | None = None


def split(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts of a list, or the one that was given. Raises TypeError for anything else."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise TypeError(f"prompts is {type(prompts).__name__}; must be text, ids, a chat or a list")
    one = bool(prompts) and isinstance(prompts[0], int | Mapping)
    return cast(list[Prompt], [prompts] if one else list(prompts))


def encode(
    prompt: Prompt, tokenizer: Any, tools: Sequence[Mapping[str, Any]] | None = None
) -> Encoded:
    """Token ids of a prompt; chats by the model's template, ready for the assistant's answer.

    tools: that a chat can use, as templates want them.

    Raises ValueError for text without a tokenizer and chats without a template, and TypeError for
    things that are no prompt.
    """
    if isinstance(prompt, bytes) or not isinstance(prompt, str | Sequence):
        raise TypeError(f"a prompt is {type(prompt).__name__}; must be text, token ids or a chat")
    if not isinstance(prompt, str) and not (prompt and isinstance(prompt[0], Mapping)):
        return Encoded(tuple(prompt))  # type: ignore[arg-type]
    if tokenizer is None:
        raise ValueError("the model has no tokenizer; the prompt must be token ids")
    if isinstance(prompt, str):
        return Encoded(tuple(tokenizer(prompt)["input_ids"]), prompt)
    try:
        offered = {} if tools is None else {"tools": list(tools)}
        text = tokenizer.apply_chat_template(
            list(prompt), tokenize=False, add_generation_prompt=True, **offered
        )
    except Exception as error:  # templates are programs, and fail in their own ways
        raise ValueError(f"the chat does not fit the model's template: {error}") from error
    return Encoded(tuple(tokenizer(text, add_special_tokens=False)["input_ids"]), text)


def checked(prompt_ids: Sequence[int], longest: int, vocab: int) -> tuple[int, ...]:
    """The prompt, if a model of this vocabulary can continue it; else ValueError."""
    ids = tuple(prompt_ids)
    if not ids:
        raise ValueError("the prompt is empty; must have at least one token")
    if len(ids) > longest:
        raise PromptTooLongError(f"the prompt has {len(ids)} tokens; must have 1 to {longest}")
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab:
            raise ValueError(f"a token id is {token!r}; must be an integer 0 to {vocab - 1}")
    return ids
