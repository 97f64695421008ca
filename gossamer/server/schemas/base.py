"""What all bodies are made of."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def valid_unicode(text: str) -> str:
    """JSON can spell halves of characters, and tokenizers cannot read them."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a character at {error.start}; must be valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(valid_unicode)]


class Body(BaseModel):
    """Strict: no strings for numbers, no fields that nobody reads, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
