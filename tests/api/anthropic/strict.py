"""The anthropic package's own types as judges, stricter than the package uses them."""

from typing import Any, TypeVar

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

Json = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

_EVENTS: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def message(value: Json) -> Message:
    """A whole message: every field of its type, none that is unknown."""
    return _known(Message.model_validate(value, strict=True))


def event(value: Json) -> RawMessageStreamEvent:
    """An event of a stream, by its type."""
    found = _EVENTS.validate_python(value, strict=True)
    assert type(found).__name__ == _name_of(value["type"])
    return _known(found)


def _name_of(kind: str) -> str:
    return "Raw" + "".join(word.title() for word in kind.split("_")) + "Event"


def _known(model: M) -> M:
    assert not model.model_extra, f"{type(model).__name__} has no {set(model.model_extra or ())}"
    for name in type(model).model_fields:
        value = getattr(model, name)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, BaseModel):
                _known(part)
    return model
