"""Bodies that are large and wrong: what they cost is bounded before it is paid."""

import asyncio
import sys
import threading
from types import FrameType
from typing import Any

import orjson
import pytest
from fastapi import Request
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError, field_validator
from starlette.types import Message

from omlx_server.api.anthropic.request import MessagesRequest
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.http import exchange, json_body
from omlx_server.api.http.bodies import BODY, Bodies
from omlx_server.api.http.json_body import StrictModel, Text
from omlx_server.api.openai.completion_prompts import CompletionRequest
from omlx_server.api.openai.embeddings import EmbeddingRequest
from omlx_server.api.responses.schema import ResponsesRequest
from omlx_server.errors import BadRequest
from tests.api.harness import ServerProcess, assert_envelope

MANY = 50_000
USER = {"role": "user", "content": "Hi"}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [USER]}
TURNS = {"model": "tiny", "max_tokens": 4}

_JSON = st.recursive(
    st.none() | st.integers(-9, 9) | st.text('ab\\"[{:,}', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text('ab\\"{:', max_size=4), inner, max_size=4)
    ),
    max_leaves=30,
)


def walked(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(walked, value.values()))
    return 1 + sum(map(walked, value)) if isinstance(value, list) else 0


@settings(max_examples=120, deadline=None, derandomize=True)
@given(value=_JSON, size=st.integers(1, 9))
def test_values_are_counted_without_parsing(value: Any, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "_SLICE_BYTES", size)
        assert [0, *json_body.running_value_counts(orjson.dumps(value))][-1] == walked(value)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (ChatRequest, {**CHAT, "messages": [5] * 9_000}),
        (ChatRequest, {**CHAT, "messages": [{**USER, "content": [5] * MANY}]}),
        (ChatRequest, {**CHAT, "messages": [{**USER, "tool_calls": [5] * MANY}]}),
        (ChatRequest, {**CHAT, "modalities": [5] * MANY}),
        (ChatRequest, {**CHAT, "stop": [5] * MANY}),
        (ChatRequest, {**CHAT, "logit_bias": {str(i): "x" for i in range(MANY)}}),
        (CompletionRequest, {"model": "tiny", "prompt": [""] * MANY}),
        (CompletionRequest, {"model": "tiny", "prompt": [[0.5] * 100] * 1000}),
        (EmbeddingRequest, {"input": [0.5] * MANY}),
        (ResponsesRequest, {"model": "tiny", "input": [5] * MANY}),
        (ResponsesRequest, {"model": "tiny", "input": [{**USER, "content": [5] * MANY}]}),
        (MessagesRequest, {**TURNS, "messages": [{**USER, "content": [5] * MANY}]}),
        (MessagesRequest, {**TURNS, "messages": [USER], "stop_sequences": [5] * MANY}),
    ],
)
def test_a_list_is_judged_by_its_first_fault(kind: type[BaseModel], wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(wrong)
    assert caught.value.error_count() < 40


@pytest.mark.parametrize(
    "filler", [[[]] * 200_001, {str(i): 0 for i in range(200_000)}, [{"a": {}}] * 70_000]
)
def test_a_body_of_too_many_values_is_refused(tiny: ServerProcess, filler: Any) -> None:
    assert_envelope(tiny.post({**tiny.body("Hi", max_tokens=2), "filler": filler}), 413)


def test_what_stands_in_a_text_is_no_value(tiny: ServerProcess) -> None:
    code = '{"a": [{}, {"b": "\\"[:"}]}' * 8
    body = tiny.body("Hi", max_tokens=2)
    assert tiny.post({**body, "filler": [code] * 20_000}).status_code == 200


def request_of(body: bytes) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "headers": [], BODY: lambda: Bodies().begin(b"")}
    return Request(scope, receive)


class Noting(StrictModel):
    """Knows the thread that validated it."""

    text: Text

    @property
    def thread(self) -> str:
        return _THREADS[len(self.text)]

    @field_validator("text")
    @classmethod
    def _note(cls, text: str) -> str:
        _THREADS[len(text)] = threading.current_thread().name
        return text


_THREADS: dict[int, str] = {}


@pytest.mark.parametrize("large", [False, True])
def test_a_large_body_is_not_parsed_on_the_event_loop(large: bool) -> None:
    async def ask(text: str) -> str:
        exchange._CURRENT.set(exchange.Exchange("id"))
        body = request_of(orjson.dumps({"text": text}))
        return (await json_body.read(body, Noting, 1 << 20)).thread

    thread = asyncio.run(ask("a" * (100_000 if large else 1000)))
    assert thread.startswith("bodies") == large


def test_a_large_body_is_refused_as_a_small_one_is() -> None:
    async def ask(body: bytes) -> str:
        exchange._CURRENT.set(exchange.Exchange("id"))
        with pytest.raises(BadRequest) as caught:
            await json_body.read(request_of(body), Noting, 1 << 20)
        return str(caught.value.param)

    for filler in ("", "a" * 100_000):
        assert asyncio.run(ask(orjson.dumps({"text": 5, "filler": filler}))) == "text"


def test_python_code_runs_between_two_models_of_a_body() -> None:
    """Only there can pydantic lose the GIL. Without it, other threads waited for the whole body."""
    parts = [{"type": "text", "text": "a"}] * MANY
    calls = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        ChatRequest.model_validate({**CHAT, "messages": [{**USER, "content": parts}]})
    finally:
        sys.setprofile(None)
    assert calls > MANY
