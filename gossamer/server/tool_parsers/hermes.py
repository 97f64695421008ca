"""Hermes, Qwen2.5, Qwen3: each call between tags of its own, on lines of their own."""

from gossamer.server.tool_parsers.base import ToolFormat

HERMES = ToolFormat(
    name="hermes",
    marks=("<tool_call>",),
    begin="<tool_call>",
    end="</tool_call>",
    together=False,
    opening="\n",
    closing="\n",
    separator="\n",
)
