"""How long texts and lists of a body may be, and what is said of one that is longer."""

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from omlx_server.api.anthropic.request import MessagesRequest
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.http.errors import bad_request_of
from omlx_server.api.http.json_body import JsonObject, Source, StrictModel, Text
from omlx_server.api.ollama.schema import OllamaChatRequest
from omlx_server.api.openai.completion_prompts import CompletionRequest
from omlx_server.api.responses.schema import ResponsesRequest
from omlx_server.errors import BadRequest
from omlx_server.models.hub.names import LONGEST_NAME
from omlx_server.text.grammar.to_grammar import MAX_CHARS

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [USER]}


class Inner(StrictModel):
    name: str


class Everything(StrictModel):
    """Texts wherever a field can have them."""

    name: str | None = None
    names: list[str] | None = None
    keyed: dict[str, str] | None = None
    inner: list[Inner] | None = None
    either: int | Annotated[str, Field(min_length=1)] | None = None
    short: Annotated[str, Field(max_length=4)] | None = None
    source: Source | None = None
    schema_: JsonObject | None = None
    text: Text | None = None


def refused(kind: type[BaseModel], body: Any) -> BadRequest:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    names = frozenset(kind.model_fields) | {"name", "tools", "content"}
    return bad_request_of(caught.value, names)


@pytest.mark.parametrize(
    ("field", "value", "most"),
    [
        ("name", "{}", LONGEST_NAME),
        ("names", ["a", "{}"], LONGEST_NAME),
        ("keyed", {"a": "{}"}, LONGEST_NAME),
        ("keyed", {"{}": "a"}, LONGEST_NAME),
        ("inner", [{"name": "{}"}], LONGEST_NAME),
        ("either", "{}", LONGEST_NAME),
        ("short", "{}", 4),
        ("source", "{}", MAX_CHARS),
    ],
)
def test_a_text_has_a_bound_unless_it_is_said_to_have_none(
    field: str, value: Any, most: int
) -> None:
    def filled(value: Any, text: str) -> Any:
        if isinstance(value, list):
            return [filled(one, text) for one in value]
        if isinstance(value, dict):
            return {filled(key, text): filled(one, text) for key, one in value.items()}
        return text if value == "{}" else value

    Everything.model_validate({field: filled(value, "x" * most)})
    error = refused(Everything, {field: filled(value, "x" * (most + 1))})
    assert error.message.endswith(f"String should have at most {most} characters")
    assert (error.param or "").split(".")[0] == field and "xxx" not in error.message
    Everything.model_validate({"text": "x" * (most + 1)})


def nested(levels: int) -> Any:
    return {"a": nested(levels - 1)} if levels else "x"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": ["x" * 1000] * 2000}, f"at most {MAX_CHARS} bytes as JSON"),
        ({"a": {"x" * MAX_CHARS: 1}}, f"at most {MAX_CHARS} bytes as JSON"),
        ({"a": {str(n): n for n in range(100_000)}}, f"at most {MAX_CHARS} bytes as JSON"),
        (nested(250), "nested too deeply"),
    ],
)
def test_a_schema_is_bounded_as_a_whole(value: Any, words: str) -> None:
    Everything.model_validate({"schema_": nested(200)})
    error = refused(Everything, {"schema_": value})
    assert words in error.message and error.param == "schema_"


@pytest.mark.parametrize(
    ("kind", "body", "param", "most"),
    [
        (ChatRequest, {**CHAT, "messages": [USER] * 10_001}, "messages", 10_000),
        (ChatRequest, {**CHAT, "tools": [TOOL] * 1001}, "tools", 1000),
        (ChatRequest, {**CHAT, "stop": ["x"] * 33}, "stop", 32),
        (ChatRequest, {**CHAT, "bad_words": ["x"] * 257}, "bad_words", 256),
        (CompletionRequest, {"model": "tiny", "prompt": ["x"] * 2049}, "prompt", 2048),
        (CompletionRequest, {"model": "tiny", "prompt": [[1]] * 2049}, "prompt", 2048),
        (ResponsesRequest, {"model": "tiny", "input": [USER] * 10_001}, "input", 10_000),
        (OllamaChatRequest, {**CHAT, "options": {"stop": ["x"] * 33}}, "options", 32),
        (MessagesRequest, {**CHAT, "max_tokens": 1, "tools": [{}] * 10_001}, "tools", 10_000),
    ],
)
def test_a_list_that_is_too_long_is_named(
    kind: type[BaseModel], body: Any, param: str, most: int
) -> None:
    error = refused(kind, body)
    assert error.message.endswith(f": List should have at most {most} items")
    assert error.param == param
