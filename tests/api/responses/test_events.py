"""The state machine: its order, its numbers, and that the last event says what all others did."""

from itertools import pairwise
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.api.chat.choices import ChoiceDelta
from omlx_server.api.chat.finish import Finish
from omlx_server.api.http import sse
from omlx_server.api.responses.items.seals import unseal_reasoning
from omlx_server.errors import BadRequest, InternalError
from omlx_server.text.parts import Arguments, CallStart, Part, Text, Thought, assemble
from tests.api.responses import judge
from tests.api.responses.made import ID, Event, answers, deltas, output, progress, run, token

finishes = st.sampled_from(get_args(Finish))
bounded = settings(derandomize=True, max_examples=150, deadline=None)


def types(events: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def check_item(events: list[Event], index: int) -> dict[str, Any]:
    """The events of one item, from added to done. Returns the item."""
    first, last = events[0], events[-1]
    item: dict[str, Any] = last["item"]
    assert (first["type"], last["type"]) == (
        "response.output_item.added",
        "response.output_item.done",
    )
    assert {event["output_index"] for event in events} == {index}
    assert {event["item_id"] for event in events[1:-1]} == {item["id"]} == {first["item"]["id"]}
    assert first["item"]["status"] == "in_progress" and item["status"] != "in_progress"
    if item["type"] == "function_call":
        check_call(events[1:-1], first["item"], item)
    else:
        check_text(events[1:-1], first["item"], item)
    return item


def check_call(inner: list[Event], added: dict[str, Any], item: dict[str, Any]) -> None:
    kind = "function_call_arguments"
    assert types(inner) == [f"{kind}.delta"] * (len(inner) - 1) + [f"{kind}.done"]
    assert added["arguments"] == ""
    joined = "".join(event["delta"] for event in inner[:-1])
    assert joined == inner[-1]["arguments"] == item["arguments"]


def check_text(inner: list[Event], added: dict[str, Any], item: dict[str, Any]) -> None:
    kind = "output_text" if item["type"] == "message" else "reasoning_text"
    deltas = [f"{kind}.delta"] * (len(inner) - 3)
    assert types(inner) == ["content_part.added", *deltas, f"{kind}.done", "content_part.done"]
    assert added["content"] == [] and inner[0]["part"]["text"] == ""
    joined = "".join(event["delta"] for event in inner[1:-2])
    assert joined == inner[-2]["text"] == inner[-1]["part"]["text"] == item["content"][0]["text"]
    assert item["content"] == [inner[-1]["part"]]


@bounded
@given(answers(), finishes)
def test_events_come_in_openais_order(parts: list[Part], finish: Finish) -> None:
    events = run(progress(), deltas(parts, finish))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert types(events[:2]) == ["created", "in_progress"]
    borders = [i for i, kind in enumerate(types(events)) if kind == "output_item.added"]
    borders.append(len(events) - 1)
    assert borders[0] == 2
    items = [
        check_item(events[start:stop], index)
        for index, (start, stop) in enumerate(pairwise(borders))
    ]
    last = events[-1]
    status = "incomplete" if finish == "length" else "completed"
    assert last["type"] == f"response.{status}"
    assert last["response"]["output"] == items
    assert [item["status"] for item in items] == ["completed"] * (len(items) - 1) + [status]
    assert len({item["id"] for item in items}) == len(items)


@bounded
@given(answers(), finishes)
def test_the_package_knows_every_event(parts: list[Part], finish: Finish) -> None:
    given_deltas = [ChoiceDelta(0, (part,), (token("x"),)) for part in parts]
    for event in run(progress(), [*given_deltas, ChoiceDelta(0, finish=finish)]):
        judge.event(event)


@bounded
@given(answers(), finishes, st.data())
def test_however_it_is_cut_into_deltas_the_response_is_the_same(
    parts: list[Part], finish: Finish, data: st.DataObject
) -> None:
    one_by_one, grouped = progress(), progress()
    run(one_by_one, deltas(parts, finish))
    groups: list[ChoiceDelta] = []
    rest = tuple(parts)
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        groups.append(ChoiceDelta(0, rest[:count]))
        rest = rest[count:]
    run(grouped, [*groups, ChoiceDelta(0, finish=finish)])
    assert one_by_one.response == grouped.response


@bounded
@given(answers(), finishes)
def test_the_response_says_what_the_model_said(parts: list[Part], finish: Finish) -> None:
    whole = assemble(parts)
    made = progress()
    run(made, deltas(parts, finish))
    items = output(made)
    calls = [item for item in items if item["type"] == "function_call"]
    assert [(c["call_id"], c["name"], c["arguments"]) for c in calls] == [
        (call.id, call.name, call.arguments) for call in whole.calls
    ]
    said = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
    thought = "".join(item["content"][0]["text"] for item in items if item["type"] == "reasoning")
    assert thought == whole.reasoning
    # Blanks between two calls are no item.
    assert "".join(said.split()) == "".join(whole.text.split())
    if not calls and (whole.text.strip() or not thought):
        assert said == whole.text


def test_a_whole_stream_in_order() -> None:
    parts: list[Part] = [
        Thought("Hm"),
        Text("Hi"),
        CallStart(0, "call_1", "f"),
        Arguments(0, "{}"),
    ]
    assert types(run(progress(), deltas(parts, "tool_calls"))) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_blank_text_around_calls_is_no_message() -> None:
    call: list[Part] = [CallStart(0, "c", "f"), Arguments(0, "{}")]
    made = progress()
    run(made, deltas([Text("\n"), *call, Text("\n\n")], "tool_calls"))
    assert [item["type"] for item in output(made)] == ["function_call"]
    run(made := progress(), deltas([Text("\n"), Text(" Hi"), *call], "tool_calls"))
    assert output(made)[0]["content"][0]["text"] == "\n Hi"


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_an_answer_of_nothing_is_an_empty_message(finish: Finish) -> None:
    made = progress()
    run(made, deltas([], finish))
    (message,) = output(made)
    assert message["content"][0]["text"] == ""


def test_thoughts_that_were_cut_are_followed_by_no_message() -> None:
    made = progress()
    run(made, deltas([Thought("Hm")], "length"))
    assert [item["type"] for item in output(made)] == ["reasoning"]
    assert made.response["incomplete_details"] == {"reason": "max_output_tokens"}
    usage = made.response["usage"]
    assert usage is not None
    assert usage["output_tokens_details"] == {"reasoning_tokens": 2}
    assert usage["input_tokens_details"] == {
        "cached_tokens": 3,
        "cache_write_tokens": 0,
    }


def test_logprobs_stand_with_the_text_they_belong_to() -> None:
    made = progress(top_logprobs=1)
    given_deltas = [
        ChoiceDelta(0, (Text(" "),), (token(" "),)),
        ChoiceDelta(0, (Text("Hi"),), (token("Hi"),)),
        ChoiceDelta(0, (), (token(""),), finish="stop"),
    ]
    events = run(made, given_deltas)
    shown = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    assert [[entry["token"] for entry in entries] for entries in shown] == [[" ", "Hi"], [""]]
    part = output(made)[0]["content"][0]
    assert [entry["token"] for entry in part["logprobs"]] == [" ", "Hi", ""]
    done = next(e for e in events if e["type"] == "response.output_text.done")
    assert done["logprobs"] == part["logprobs"]


def test_tokens_of_one_delta_are_told_once() -> None:
    parts = (Text("Hi"), CallStart(0, "c", "f"), Text("Ho"))
    run(made := progress(), [ChoiceDelta(0, parts, (token("Hi"),), "tool_calls")])
    first, _, last = output(made)
    assert len(first["content"][0]["logprobs"]) == 1 and not last["content"][0]["logprobs"]


def test_reasoning_is_sealed_when_it_was_asked_for() -> None:
    made = progress(include=["reasoning.encrypted_content"])
    events = run(made, deltas([Thought("Hm é"), Text("Hi")], "stop"))
    assert unseal_reasoning(output(made)[0]["encrypted_content"]) == "Hm é"
    assert "encrypted_content" not in events[2]["item"]
    run(made := progress(), deltas([Thought("Hm")], "stop"))
    assert "encrypted_content" not in output(made)[0]


@pytest.mark.parametrize(
    ("error", "code"),
    [(InternalError("broken"), "server_error"), (BadRequest("bad"), "invalid_prompt")],
)
def test_a_failure_ends_the_stream_and_keeps_what_has_come(error: Any, code: str) -> None:
    made = progress()
    events: list[Any] = made.begin() + made.add(ChoiceDelta(0, (Text("Half"),)))
    events += made.fail(error)
    assert types(events[-5:]) == [
        "error",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "failed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        judge.event(event)
    assert made.response["status"] == "failed"
    assert made.response["error"] == {"code": code, "message": error.message}
    assert output(made)[0]["status"] == "incomplete"


def test_nothing_follows_the_end() -> None:
    made = progress()
    run(made, deltas([Text("Hi")], "stop"))
    assert made.fail(InternalError("late")) == []
    assert made.response["status"] == "completed"


def test_events_as_bytes_say_their_type_twice() -> None:
    first, second = sse.named_events(*progress().begin()).decode().strip().split("\n\n")
    name, data = second.split("\n")
    assert first.startswith("event: response.created\ndata: {")
    assert name == "event: response.in_progress"
    shape = orjson.loads(data.removeprefix("data: "))
    assert shape["type"] == "response.in_progress" and shape["response"]["id"] == ID
