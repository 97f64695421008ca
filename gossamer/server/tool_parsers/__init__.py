"""How families of models write tool calls: a file each, chosen by the template or by name."""

from typing import Any

from gossamer.server.tool_parsers.base import ToolFormat
from gossamer.server.tool_parsers.hermes import HERMES
from gossamer.server.tool_parsers.llama3 import LLAMA3
from gossamer.server.tool_parsers.mistral import MISTRAL
from gossamer.server.tool_parsers.smollm2 import SMOLLM2

# The first whose marks a template has; SmolLM2's are a part of Hermes's.
FORMATS = {each.name: each for each in (MISTRAL, SMOLLM2, HERMES, LLAMA3)}

__all__ = ["FORMATS", "ToolFormat", "format_of", "takes_tools"]


def takes_tools(template: Any) -> bool:
    """Whether a chat template has a place for tools."""
    return "tools" in _text(template)


def format_of(template: Any, name: str | None = None) -> ToolFormat:
    """Of the model with this template; name: of a format, where the user chose one.

    A template without a place for tools gets SmolLM2's, which needs none. Raises ValueError for a
    template with tools of an unknown family.
    """
    if name is not None:
        return FORMATS[name]
    text = _text(template)
    if not takes_tools(text):
        return SMOLLM2
    for each in FORMATS.values():
        if each.wrote(text):
            return each
    raise ValueError(
        "the model's template has tools in a form that is not known; "
        f"name one by --tool-parser: {', '.join(sorted(FORMATS))}"
    )


def _text(template: Any) -> str:
    """Some models have several templates by name, one of them for tools."""
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template or ""
