"""Llama 3.1 to 3.3: an answer is either text or calls, which have `parameters`."""

from gossamer.server.tool_parsers.base import ToolFormat

LLAMA3 = ToolFormat(
    name="llama3",
    marks=("<|start_header_id|>", '"parameters"'),
    separator="; ",
    arguments="parameters",
)
