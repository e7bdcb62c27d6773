"""Answers as events: their order, and that they are the whole message."""

from collections.abc import Sequence
from typing import Any, get_args

import orjson
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.api.anthropic.answers import AssistantTurn, Ending
from omlx_server.api.anthropic.events import PING, SIGNATURE, MessageEvents, assemble_message
from omlx_server.api.anthropic.turns import tool_use_id
from omlx_server.api.chat.choices import TokenCounts
from omlx_server.api.chat.finish import Finish
from omlx_server.api.http import sse
from omlx_server.api.http.anthropic_errors import envelope
from omlx_server.errors import InternalError
from omlx_server.text.parts import Arguments, CallStart, Part, Text, Thought, assemble
from tests.api.anthropic import strict

Json = dict[str, Any]
PARAGRAPH = '\x00é\n\n"data: [DONE]" </think> 𝄞'

texts = st.text(max_size=8) | st.just(PARAGRAPH)
objects = st.dictionaries(texts, st.integers(-5, 5) | texts | st.none(), max_size=3)
runs = st.lists(st.builds(Text, texts) | st.builds(Thought, texts), max_size=4)


@st.composite
def answers(draw: st.DrawFn) -> list[Part]:
    """Thoughts and texts, between them calls whose arguments come in pieces."""
    parts: list[Part] = [*draw(runs)]
    for index in range(draw(st.integers(0, 3))):
        parts.append(CallStart(index, f"call_{index}", draw(st.sampled_from(["add", "f.g-h"]))))
        rest = orjson.dumps(draw(objects)).decode()
        while rest:
            size = draw(st.integers(1, len(rest)))
            parts.append(Arguments(index, rest[:size]))
            rest = rest[size:]
        parts += draw(runs)
    return parts


@st.composite
def endings(draw: st.DrawFn) -> Ending:
    stopped = draw(st.none() | st.just("END"))
    finish: Finish = "stop" if stopped else draw(st.sampled_from(get_args(Finish)))
    return Ending(finish, stopped, draw(st.booleans()))


def told(parts: Sequence[Part], ending: Ending, usage: TokenCounts | None = None) -> list[Any]:
    usage = usage or TokenCounts(prompt=11, completion=0, cached=4, reasoning=0)
    events = MessageEvents("msg_1", "some/model", usage)
    result = events.start()
    for part in parts:
        result += events.add(part)
    usage.completion, usage.reasoning = 7, 2
    return result + events.end(ending)


def parsed(message: AssistantTurn) -> Json:
    """As a client gets it."""
    result: Json = orjson.loads(orjson.dumps(message))
    return result


def kinds(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(answers(), endings())
def test_what_the_package_assembles_is_the_whole_message(parts: list[Part], ending: Ending) -> None:
    events = told(parts, ending)
    buffers: dict[int, bytes] = {}
    snapshot = None
    for event in events:
        snapshot = accumulate_event(
            event=strict.event(event), current_snapshot=snapshot, json_bufs=buffers
        )
    assert snapshot is not None
    whole = strict.message(parsed(assemble_message(events)))
    # What the package adds of its own is null.
    streamed = snapshot.to_dict(mode="json", exclude_none=True)
    assert streamed == whole.to_dict(mode="json", exclude_none=True)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(answers(), endings())
def test_one_block_is_open_at_a_time_and_none_is_empty(parts: list[Part], ending: Ending) -> None:
    first, *middle, last, end = told(parts, ending)
    assert (first["type"], last["type"], end["type"]) == (
        "message_start",
        "message_delta",
        "message_stop",
    )
    index, kind, grown = -1, "", False
    for event in middle:
        match event["type"]:
            case "content_block_start":
                assert not kind
                index, kind, grown = index + 1, event["content_block"]["type"], False
            case "content_block_delta":
                assert kind and next(v for k, v in event["delta"].items() if k != "type")
                grown = True
            case _:
                assert event["type"] == "content_block_stop" and grown
                kind = ""
        assert event["index"] == index
    assert not kind


@settings(derandomize=True, max_examples=100, deadline=None)
@given(answers(), endings())
def test_nothing_of_the_answer_is_lost(parts: list[Part], ending: Ending) -> None:
    whole = parsed(assemble_message(told(parts, ending)))
    blocks = whole["content"]
    answer = assemble(parts)
    assert "".join(b["text"] for b in blocks if b["type"] == "text") == answer.text
    assert "".join(b["thinking"] for b in blocks if b["type"] == "thinking") == answer.reasoning
    calls = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    assert calls == [(tool_use_id(c.id), c.name, orjson.loads(c.arguments)) for c in answer.calls]


def test_the_events_of_an_answer_that_thinks_says_and_calls() -> None:
    parts: list[Part] = [
        Thought("hm"),
        Text("I "),
        Text("see."),
        CallStart(0, "call_1", "add"),
        Arguments(0, '{"a":'),
        Arguments(0, " 1}"),
        CallStart(1, "call_2", "now"),
    ]
    events = told(parts, Ending("tool_calls"))
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": SIGNATURE},
        {"type": "text_delta", "text": "I "},
        {"type": "text_delta", "text": "see."},
        {"type": "input_json_delta", "partial_json": '{"a":'},
        {"type": "input_json_delta", "partial_json": " 1}"},
    ]
    direct = {"caller": {"type": "direct"}}
    starts = [event["content_block"] for event in events if "content_block" in event]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": "", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}, **direct},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}, **direct},
    ]
    assert parsed(assemble_message(events))["content"][2:] == [
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}, **direct},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}, **direct},
    ]


def test_an_empty_answer_has_no_blocks() -> None:
    events = told([Text("")], Ending("stop"))
    assert kinds(events) == ["message_start", "message_delta", "message_stop"]
    assert assemble_message(events)["content"] == []


def test_counts_come_at_the_start_and_all_of_them_at_the_end() -> None:
    events = told([Text("a")], Ending("stop"))
    start, end = events[0]["message"]["usage"], events[-2]["usage"]
    of_input = {
        "input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
    }
    assert of_input.items() <= start.items() and start["output_tokens"] == 0
    assert of_input.items() <= end.items() and end["output_tokens"] == 7
    assert end["output_tokens_details"] == {"thinking_tokens": 2}


CALL = CallStart(0, "call_1", "add")


@pytest.mark.parametrize(
    ("parts", "ending", "reason"),
    [
        ([], Ending("stop"), "end_turn"),
        ([], Ending("length"), "max_tokens"),
        ([], Ending("length", full=True), "model_context_window_exceeded"),
        ([], Ending("stop", full=True), "end_turn"),
        ([CALL], Ending("tool_calls"), "tool_use"),
        ([CALL], Ending("stop"), "tool_use"),  # as after a call that was asked for by name
        ([CALL], Ending("length"), "max_tokens"),
        ([], Ending("stop", "END"), "stop_sequence"),
        ([CALL], Ending("stop", "END"), "stop_sequence"),
    ],
)
def test_why_it_ended(parts: list[Part], ending: Ending, reason: str) -> None:
    delta = told(parts, ending)[-2]["delta"]
    told_nothing = {"container": None, "stop_details": None}
    assert delta == {"stop_reason": reason, "stop_sequence": ending.stopped, **told_nothing}


@pytest.mark.parametrize("arguments", ['{"a":1e999}', '{"a":"\\ud800"}', '{"a":' * 2000])
def test_arguments_that_no_reader_takes_break_nothing(arguments: str) -> None:
    closed = arguments + "1" * arguments.endswith(":") + "}" * (arguments.count("{") - 1)
    closed += "}" if closed.count("}") < closed.count("{") else ""
    parts: list[Part] = [CALL, Arguments(0, closed)]
    assert closed.encode() in orjson.dumps(assemble_message(told(parts, Ending("tool_calls"))))


@settings(derandomize=True, max_examples=50, deadline=None)
@given(answers(), endings())
def test_an_event_is_two_lines_named_as_its_type(parts: list[Part], ending: Ending) -> None:
    for event in told(parts, ending):
        name, data, *rest = sse.named_events(event).decode().split("\n")
        assert name == f"event: {event['type']}"
        assert orjson.loads(data.removeprefix("data: ")) == event
        assert rest == ["", ""]


def test_pings_and_errors_are_named_too() -> None:
    assert PING == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert sse.named_events(envelope(InternalError("broken"), "req_1")) == (
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"broken"},'
        b'"request_id":"req_1"}\n\n'
    )
