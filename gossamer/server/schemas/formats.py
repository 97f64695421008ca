"""What an answer must look like: OpenAI's response_format, and vLLM's structured_outputs."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gossamer.engine import StructuredOutputs
from gossamer.server.schemas.base import Body, Text


def _schema(value: dict[str, Any]) -> dict[str, Any]:
    """As deep and as large as can be compiled; see StructuredOutputs."""
    StructuredOutputs(json=value)
    return value


Schema = Annotated[dict[str, Any], AfterValidator(_schema)]


class NamedSchema(Body):
    """strict: the answer matches the schema, whether it is set or not."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema is missing; must be there with type json_schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise ValueError(f"json_schema with type {self.type}; must be with type json_schema")
        return self

    @property
    def schema_of_answers(self) -> dict[str, Any] | None:
        """None for free text."""
        if self.type == "text":
            return None
        given = None if self.json_schema is None else self.json_schema.schema_
        return {"type": "object"} if given is None else given


class Structured(Body):
    """As in vLLM; one of them."""

    json_: Annotated[Schema | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        try:
            self.outputs()
        except TypeError as error:  # pydantic has other words for it
            raise ValueError(str(error)) from None
        return self

    def outputs(self) -> StructuredOutputs:
        return StructuredOutputs(
            json=self.json_,
            json_object=bool(self.json_object),
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
        )
