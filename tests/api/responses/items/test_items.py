"""Items in whatever form they are sent, and the chat that they mean."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseItem

from omlx_server.api.responses.answers import InputItem
from omlx_server.api.responses.items.items import (
    ItemIds,
    page_of_items,
    response_of,
    stored_form,
)
from omlx_server.api.responses.items.messages import (
    Message,
    chat_messages,
    image_chars,
    join_contents,
)
from omlx_server.api.responses.items.seals import seal_reasoning, unseal_reasoning
from omlx_server.api.responses.tool_names import ToolNames
from omlx_server.errors import BadRequest
from omlx_server.text.parts import Part, assemble
from tests.api.responses import judge
from tests.api.responses.made import ID, answers, asked, deltas, progress, run

bounded = settings(derandomize=True, max_examples=100, deadline=None)

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "Rain"}


def stored(given: Any, known: dict[str, InputItem] | None = None) -> list[InputItem]:
    request = asked(input=given)
    return stored_form(request.input, ItemIds(ID), (known or {}).__getitem__)


def chat(given: Any, instructions: str | None = None) -> list[Message]:
    return chat_messages(instructions, stored(given), ToolNames())


def says(role: str, content: str, **fields: Any) -> Message:
    return {"role": role, "content": content, **fields}


def called(*ids: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": '{"a":1}'}
    return {"tool_calls": [{"id": id, "type": "function", "function": function} for id in ids]}


# -- the chat --------------------------------------------------------------------------------


def test_a_text_is_what_the_user_says() -> None:
    assert chat("Hi") == [says("user", "Hi")]


def test_instructions_come_first() -> None:
    items = [{"role": "developer", "content": "b"}, {"role": "user", "content": "Hi"}]
    assert chat(items, "a") == [says("system", "a"), says("developer", "b"), says("user", "Hi")]


@pytest.mark.parametrize("kind", [{}, {"type": "message"}, {"type": None}])
@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
def test_messages_in_any_form(role: str, kind: dict[str, Any]) -> None:
    part = "output_text" if role == "assistant" else "input_text"
    parts = [{"type": part, "text": "H"}, {"type": part, "text": "i"}]
    for content in ("Hi", parts):
        assert chat([{"role": role, "content": content, **kind}]) == [says(role, "Hi")]


def test_what_the_assistant_said_in_one_go_is_one_message() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [_reasoning("Hm")]}
    items = [
        {"role": "user", "content": "Weather?"},
        thought,
        {"role": "assistant", "content": "Let me see."},
        CALL,
        {**CALL, "call_id": "c2"},
        OUTPUT,
        {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "Sun"}]},
        CALL,
    ]
    assert chat(items) == [
        says("user", "Weather?"),
        says("assistant", "Let me see.", reasoning_content="Hm", **called("c1", "c2")),
        says("tool", "Rain", tool_call_id="c1"),
        says("tool", "Sun", tool_call_id="c2"),
        says("assistant", "", **called("c1")),
    ]


def test_two_messages_of_the_assistant_are_two_turns() -> None:
    items = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert chat(items) == [says("assistant", "a"), says("assistant", "b")]


def test_thoughts_that_led_to_nothing_are_left_out() -> None:
    thought = {"type": "reasoning", "summary": [_summary("Hm")]}
    items = [thought, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    assert chat(items) == [says("user", "Hi"), says("assistant", "Ho")]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"content": [{"type": "reasoning_text", "text": "whole"}]}, "whole"),
        ({"content": None, "encrypted_content": seal_reasoning("sealed é")}, "sealed é"),
        ({"encrypted_content": "gAAAAA-of-somebody-else"}, "short"),
        ({"encrypted_content": "omlx1.%%%"}, "short"),
        ({"encrypted_content": "omlx1._w=="}, "short"),  # no UTF-8
    ],
)
def test_reasoning_is_taken_from_where_it_stands(item: dict[str, Any], text: str) -> None:
    thought = {"type": "reasoning", "summary": [_summary("short")], **item}
    assert chat([thought, CALL]) == [says("assistant", "", reasoning_content=text, **called("c1"))]


def test_custom_tools_of_other_servers_stay_in_the_conversation() -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a"b'}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"}
    said, heard = chat([call, output])
    assert said["tool_calls"][0]["function"] == {"name": "patch", "arguments": '{"input": "a\\"b"}'}
    assert heard == says("tool", "Done", tool_call_id="c1")


def test_items_of_unknown_types_are_left_out() -> None:
    others = [{"type": "web_search_call", "id": "ws_1"}, {"type": "no_such", "role": "user"}]
    assert chat([*others, {"role": "user", "content": "Hi"}]) == [says("user", "Hi")]


@bounded
@given(answers())
def test_an_answer_that_is_sent_back_is_what_the_model_said(parts: list[Part]) -> None:
    """As chat completions would send it back, but for blank text around calls."""
    made = progress()
    run(made, deltas(parts, "stop"))
    whole = assemble(parts)
    (message,) = chat(made.response["output"])
    assert message["content"].split() == whole.text.split()
    calls = [call["function"] for call in message.get("tool_calls", [])]
    assert calls == [{"name": c.name, "arguments": c.arguments} for c in whole.calls]
    assert message.get("reasoning_content", "") == whole.reasoning


@given(st.text())
@bounded
def test_sealed_text_comes_back(text: str) -> None:
    assert unseal_reasoning(seal_reasoning(text)) == text.encode(errors="replace").decode()


# -- the stored form -------------------------------------------------------------------------


def test_the_package_knows_every_stored_item() -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "reasoning", "summary": [_summary("Hm")], "content": [_reasoning("Hm")]},
        CALL,
        OUTPUT,
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "y"},
    ]
    found = stored(items)
    assert len(found) == len(items)
    for item in found:
        assert judge.judged(ResponseItem, item).type == item["type"]
        assert response_of(item["id"]) == ID
    assert len({item["id"] for item in found}) == len(items)


def test_given_ids_stay() -> None:
    assert stored([{**CALL, "id": "fc_mine"}])[0]["id"] == "fc_mine"


def test_a_reference_is_the_item_itself() -> None:
    known = stored("Hi")
    by_id = {item["id"]: item for item in known}
    reference = {"id": known[0]["id"]}
    assert stored([reference, {**reference, "type": "item_reference"}], by_id) == known * 2


IMAGE: dict[str, Any] = {"type": "input_image", "image_url": "data:,x", "detail": "low"}
TEXT = {"type": "input_text", "text": "a"}
SHOWN = {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}}


def test_images_stay_where_they_are() -> None:
    given = [
        {"role": "user", "content": [TEXT, IMAGE, TEXT]},
        {**CALL, "call_id": "c"},
        {**OUTPUT, "call_id": "c", "output": [IMAGE]},
    ]
    items = stored(given)
    assert items[0]["content"] == [TEXT, IMAGE, TEXT]  # type: ignore[typeddict-item]
    assert items[2]["output"] == [IMAGE]  # type: ignore[typeddict-item]
    user, _, tool = chat(given)
    text = {"type": "text", "text": "a"}
    assert user == {"role": "user", "content": [text, SHOWN, text]}
    assert tool["content"] == [SHOWN]
    assert image_chars(items) == 2 * len("data:,x")


def test_a_detail_that_is_not_given_is_auto() -> None:
    bare = {key: IMAGE[key] for key in ("type", "image_url")}
    (item,) = stored([{"role": "user", "content": [bare]}])
    assert item["content"] == [{**bare, "detail": "auto"}]  # type: ignore[typeddict-item]


def test_contents_with_images_are_joined_with_gaps() -> None:
    text = {"type": "text", "text": "a"}
    gap = {"type": "text", "text": "\n\n"}
    assert join_contents(["a", "b"]) == "a\n\nb"
    assert join_contents(["a", [SHOWN], "a"]) == [text, gap, SHOWN, gap, text]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user", "content": [{"type": "input_image"}]}, "content.0"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}, "content.0"),
        ({"role": "assistant", "content": [{**IMAGE, "type": "output_image"}]}, "content.0"),
        ({"role": "system", "content": [IMAGE]}, "content.0"),
        ({"role": "assistant", "content": [IMAGE]}, "content.0"),
        ({"role": "user", "content": [{"type": "input_file", "text": "x"}]}, "content.0"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content.0"),
        ({**OUTPUT, "output": [{"type": "input_image"}]}, "output.0"),
        ({"type": "reasoning", "content": [{"type": "input_image"}]}, "content.0"),
    ],
)
def test_what_is_no_text_is_refused(item: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        stored([{"role": "user", "content": "Hi"}, item])
    assert caught.value.param == f"input.1.{param}"


def compacted(id: str) -> InputItem:
    return {"id": id, "type": "compaction", "encrypted_content": ""}


@bounded
@given(st.integers(0, 9), st.integers(1, 4), st.booleans())
def test_pages_together_are_all_items(count: int, limit: int, newest_first: bool) -> None:
    items = [compacted(f"i{n}") for n in range(count)]
    seen: list[InputItem] = []
    more = True
    while more:
        after = seen[-1]["id"] if seen else None
        answer = page_of_items(items, limit, after, newest_first=newest_first)
        found, more = answer["data"], answer["has_more"]
        ends = (found[0]["id"], found[-1]["id"]) if found else ("", "")
        assert (answer["first_id"], answer["last_id"]) == ends
        assert len(found) <= limit and (not more or len(found) == limit)
        seen += found
    assert seen == (items[::-1] if newest_first else items)


def test_a_page_after_a_stranger_is_refused() -> None:
    with pytest.raises(BadRequest):
        page_of_items([compacted("a")], 1, "b", newest_first=False)


def _reasoning(text: str) -> dict[str, str]:
    return {"type": "reasoning_text", "text": text}


def _summary(text: str) -> dict[str, str]:
    return {"type": "summary_text", "text": text}
