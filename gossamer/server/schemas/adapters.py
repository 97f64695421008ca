"""The bodies of /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from typing import Annotated

from pydantic import Field

from gossamer.server.schemas.base import Body, Text

Name = Annotated[Text, Field(min_length=1, max_length=200)]


class LoadBody(Body):
    """lora_path: a folder in that of --lora-dir."""

    lora_name: Name
    lora_path: Annotated[Text, Field(min_length=1, max_length=4096)]


class UnloadBody(Body):
    lora_name: Name
