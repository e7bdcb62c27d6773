"""A response as it is kept: bytes to values and back.

Whatever stands in a file may have been written by somebody else, or in part. It is read as strictly
as an answer of this API is described, so that nothing behind it meets a value of a wrong kind.
"""

from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from omlx_server.api.response_store.store import Damaged
from omlx_server.api.responses.answers import InputItem, Response


@dataclass(frozen=True, slots=True)
class Stored:
    """A response, and everything before its output but the instructions: the inputs and outputs of
    the responses that it goes on from, then its own input."""

    response: Response
    input: list[InputItem]

    @property
    def conversation(self) -> list[InputItem]:
        return [*self.input, *self.response["output"]]


class _Record(TypedDict):
    response: Response
    input: list[InputItem]


_RECORD = TypeAdapter(_Record)
_ADDED = {"presence_penalty": 0.0, "frequency_penalty": 0.0}


def as_bytes(stored: Stored) -> bytes:
    return orjson.dumps({"response": stored.response, "input": stored.input})


def _bring_up_to_date(shape: Any) -> None:
    """Give a record of an earlier version what was added since."""
    response = shape.get("response") if isinstance(shape, dict) else None
    if not isinstance(response, dict):
        return
    shape["response"] = _ADDED | response
    for items in (response.get("output"), shape.get("input")):
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("encrypted_content", "") is None:
                del item["encrypted_content"]


def of_bytes(data: bytes, id: str) -> Stored:
    """The response of this id. Raises Damaged for anything else."""
    try:
        shape = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Damaged("no_json") from None
    _bring_up_to_date(shape)
    try:
        _RECORD.validate_python(shape, strict=True)
    except (ValidationError, RecursionError):
        raise Damaged("wrong_fields") from None
    if shape["response"]["id"] != id:
        raise Damaged("another")
    return Stored(shape["response"], shape["input"])
