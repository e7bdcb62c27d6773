"""Types of texts in requests, by length. A plain `str` in a `StrictModel` is a short name."""

from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import CoreSchema, PydanticCustomError

from omlx_server.models.hub.names import LONGEST_NAME
from omlx_server.text.grammar.to_grammar import MAX_CHARS

_UNBOUNDED = "unbounded"
# An answer may repeat a value so many levels deep, and orjson must be able to write it there.
_ANSWER_LEVELS = 16
_ERROR_FIELDS = {"most": MAX_CHARS}


def _mark_unbounded(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    schema: Any = handler(source)
    return {**schema, "metadata": {**schema.get("metadata", {}), _UNBOUNDED: True}}


def _check_size_and_depth(value: Any) -> Any:
    """Return `value`. Raises PydanticCustomError for too many bytes as JSON or deep nesting."""
    nested = value
    for _ in range(_ANSWER_LEVELS):
        nested = [nested]
    try:
        nbytes = len(orjson.dumps(nested))
    except orjson.JSONEncodeError:
        raise PydanticCustomError("too_deep", "Input is nested too deeply") from None
    if nbytes > MAX_CHARS:
        raise PydanticCustomError(
            "too_long", "Input should have at most {most} bytes as JSON", _ERROR_FIELDS
        )
    return value


Text = Annotated[str, GetPydanticSchema(_mark_unbounded)]
"""A part of a prompt, or an image, bounded only by the body's limit."""

Source = Annotated[str, Field(max_length=MAX_CHARS)]
"""A grammar, a pattern, or the text of a schema."""

JsonObject = Annotated[dict[str, Any], AfterValidator(_check_size_and_depth)]
"""A schema or options, of any form."""

Choices = Annotated[list[Source], AfterValidator(_check_size_and_depth)]
"""The answers to choose from."""


def bound_texts_and_lists(schema: Any) -> None:
    """Bound each other string of a core schema as a name; stop lists at their first fault."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        if schema.get("type") == "str" and not schema.get("metadata", {}).get(_UNBOUNDED):
            schema.setdefault("max_length", LONGEST_NAME)
        for member in schema.values():
            bound_texts_and_lists(member)
    elif isinstance(schema, list | tuple):
        for member in schema:
            bound_texts_and_lists(member)
