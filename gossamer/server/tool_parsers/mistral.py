"""Mistral and Mixtral (up to v7 of the template): a list after one mark, to the answer's end."""

from gossamer.server.tool_parsers.base import ToolFormat

MISTRAL = ToolFormat(
    name="mistral",
    marks=("[TOOL_CALLS]",),
    begin="[TOOL_CALLS]",
    opening="[",
    closing="]",
    id_length=9,  # its template refuses others
)
