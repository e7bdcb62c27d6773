"""Turns of a Messages request as messages of a chat."""

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.api.anthropic.request import CountRequest
from omlx_server.api.anthropic.turns import call_id, chat_messages, image_chars, tool_use_id
from omlx_server.api.chat.request import Message
from omlx_server.errors import BadRequest

Json = dict[str, Any]

BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"
USER = {"role": "user", "content": "Hi"}


def text(words: str, **fields: Any) -> Json:
    return {"type": "text", "text": words, **fields}


def use(id: str, name: str, **arguments: Any) -> Json:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def result(id: str, content: Any, **fields: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


def converted(*turns: Json, **fields: Any) -> list[Json]:
    asked = CountRequest.model_validate({"model": "m", "messages": list(turns), **fields})
    messages = chat_messages(asked)
    for message in messages:
        Message.model_validate(message)
    return messages


def test_a_conversation_goes_over_as_it_is() -> None:
    turns = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    ]
    assert converted(*turns) == turns


@pytest.mark.parametrize("system", ["Be kind.", [text("Be kind.")]])
def test_the_system_prompt_comes_first(system: Any) -> None:
    assert converted(USER, system=system) == [{"role": "system", "content": "Be kind."}, USER]


@pytest.mark.parametrize("system", [None, [], [text("")], BILLING, [text(BILLING)]])
def test_a_system_prompt_that_says_nothing_is_none(system: Any) -> None:
    fields = {} if system is None else {"system": system}
    assert converted(USER, **fields) == [USER]


def test_an_empty_text_keeps_the_models_default_away() -> None:
    assert converted(USER, system="") == [{"role": "system", "content": ""}, USER]


def test_billing_blocks_change_nothing() -> None:
    """Neither their value nor whether there is one, at the front or in a turn."""
    plain = [text("Be kind.", cache_control={"type": "ephemeral"}), text("Be brief.")]
    late = {"role": "system", "content": [text("And now?")]}
    without = converted(USER, late, system=plain)
    for value in ("1", "2"):
        block = text(f"{BILLING} {value}")
        late = {"role": "system", "content": [block, text("And now?")]}
        assert converted(USER, late, system=[block, *plain]) == without
    assert without[0]["content"] == "Be kind.\nBe brief."


def test_only_a_system_block_is_dropped_for_billing() -> None:
    turn = {"role": "user", "content": [text(BILLING)]}
    assert converted(turn) == [{"role": "user", "content": BILLING}]


def test_a_system_turn_stays_where_it_is() -> None:
    late = {"role": "system", "content": "It is noon."}
    answer = {"role": "assistant", "content": "Hello"}
    turns = converted(USER, late, answer, USER, system="Be kind.")
    assert [turn["role"] for turn in turns] == ["system", "user", "system", "assistant", "user"]
    assert turns[2] == late


def test_blocks_are_parted_by_space() -> None:
    blocks = [text("one"), text("two\n"), text("three"), text(" four"), text(""), text("five")]
    (turn,) = converted({"role": "user", "content": blocks})
    assert turn["content"] == "one\ntwo\nthree four\nfive"


def test_neighbours_of_one_role_become_one() -> None:
    calls = {"role": "assistant", "content": [use("a", "f")]}
    more = {"role": "assistant", "content": [text("x"), use("b", "g")]}
    turns = converted(USER, USER, calls, more, {"role": "user", "content": [result("a", "1")]})
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool"]
    assert turns[0]["content"] == "Hi\nHi"
    assert [call["id"] for call in turns[1]["tool_calls"]] == ["a", "b"]
    assert turns[1]["content"] == "x"


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_many_turns_of_one_role_take_no_long(role: str) -> None:
    """Their texts are not copied again for each: that would be 75 GB here."""
    turn = {"role": role, "content": "x" * 1500}
    start = time.thread_time()
    messages = converted(USER, *[turn] * 9_999)
    assert time.thread_time() - start < 5
    assert sum(len(message["content"]) for message in messages) > 9_999 * 1500


def test_a_call_and_its_results() -> None:
    answer = [
        {"type": "thinking", "thinking": "Let me ", "signature": "s"},
        {"type": "redacted_thinking", "data": "AAAA"},
        {"type": "thinking", "thinking": "look.", "signature": "s"},
        text("Two "),
        text("calls."),
        use("a", "weather", city="Zürich", days=[1]),
        use("b", "time"),
    ]
    results = [
        result("b", [text("noon"), text("sharp")], cache_control={"type": "ephemeral"}),
        text("Go on."),
        result("a", "rain", is_error=True),
    ]
    turns = converted(
        USER, {"role": "assistant", "content": answer}, {"role": "user", "content": results}
    )
    assert turns[1] == {
        "role": "assistant",
        "content": "Two calls.",
        "reasoning_content": "Let me look.",
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Zürich", "days": [1]}'},
            },
            {"id": "b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
        ],
    }
    assert turns[2:] == [
        {"role": "tool", "tool_call_id": "b", "name": "time", "content": "noon\nsharp"},
        {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "Error: rain"},
        {"role": "user", "content": "Go on."},
    ]


def test_a_template_gets_the_names_of_calls_as_they_are_here() -> None:
    """Mistral's takes nine letters and digits, and clients have them behind a prefix."""
    called = {"role": "assistant", "content": [use("toolu_aB3dE6gH9", "time")]}
    given = {"role": "user", "content": [result("toolu_aB3dE6gH9", "noon")]}
    _, turn, answer = converted(USER, called, given)
    assert turn["tool_calls"][0]["id"] == answer["tool_call_id"] == "aB3dE6gH9"
    assert answer["name"] == "time"
    assert tool_use_id("aB3dE6gH9") == "toolu_aB3dE6gH9"
    assert call_id(tool_use_id("call_0a1b")) == "0a1b"
    assert [call_id(name) for name in ("call_0", "toolu_", "x")] == ["call_0", "toolu_", "x"]


@pytest.mark.parametrize(
    ("content", "shown"),
    [(None, ""), ("", ""), ([], ""), ([{"type": "tool_reference", "tool_name": "add"}], "add")],
)
def test_what_a_tool_may_give(content: Any, shown: str) -> None:
    (turn,) = converted({"role": "user", "content": [result("unknown", content)]})
    assert turn == {"role": "tool", "tool_call_id": "unknown", "content": shown}


def image(data: str) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def shown(data: str) -> Json:
    return {"type": "image_url", "image_url": f"data:;base64,{data}"}


def test_images_become_parts_between_texts() -> None:
    blocks = [text("a"), text("b"), image("AA=="), text("c"), image("BB=="), image("CC==")]
    (turn,) = converted({"role": "user", "content": blocks})
    parts = [text("a\nb"), shown("AA=="), text("c"), shown("BB=="), shown("CC==")]
    assert turn == {"role": "user", "content": parts}


def test_an_image_of_a_result_stays_in_it() -> None:
    blocks = [result("a", [text("here"), image("AA==")], is_error=True), image("BB=="), text("?")]
    tool, user = converted({"role": "user", "content": blocks})
    assert tool["role"] == "tool"
    assert tool["content"] == [text("Error: "), text("here"), shown("AA==")]
    assert user == {"role": "user", "content": [shown("BB=="), text("?")]}


def test_turns_with_images_are_joined_as_others() -> None:
    turns: list[Json] = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [text("b"), image("AA==")]},
        {"role": "user", "content": [text("c")]},
    ]
    (turn,) = converted(*turns)
    assert turn["content"] == [text("a\nb"), shown("AA=="), text("c")]


def test_the_characters_of_images_are_counted() -> None:
    blocks = [image("A" * 400), result("a", [image("B" * 800), text("c")]), text("d")]
    turns = [{"role": "user", "content": blocks}, {"role": "user", "content": "e"}]
    asked = CountRequest.model_validate({"model": "m", "messages": turns})
    assert image_chars(asked) == 1200


def document(source: Json, **about: str) -> Json:
    return {"type": "document", "source": source, **about}


def test_documents_of_text_are_told_with_what_is_said_of_them() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "All is well."}
    listed = {"type": "content", "content": [text("See:"), image("AA==")]}
    found = {"type": "search_result", "source": "w.org", "title": "W", "content": [text("wet")]}
    (turn,) = converted(
        {"role": "user", "content": [document(plain, title="News", context="old"), text("So?")]}
    )
    assert turn["content"] == "<document>\nNews\nold\nAll is well.\n</document>\nSo?"
    (turn,) = converted({"role": "user", "content": [result("a", [document(listed), found])]})
    assert turn["content"] == [
        text("<document>\nSee:"),
        shown("AA=="),
        text("</document>\n<document>\nW\nw.org\nwet\n</document>"),
    ]
    (turn,) = converted({"role": "user", "content": [document({**listed, "content": "whole"})]})
    assert turn["content"] == "<document>\nwhole\n</document>"


def searched(id: str, content: Any, kind: str = "web_search") -> Json:
    return {"type": f"{kind}_tool_result", "tool_use_id": id, "content": content}


def test_what_a_tool_of_anthropic_gave_stands_between_the_texts() -> None:
    page = {"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "s3cr3t"}
    asked = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": 1}}
    turn = [text("I look."), asked, searched("srvtoolu_1", [page]), text("It"), text(" rains.")]
    _, call, given, said = converted(USER, {"role": "assistant", "content": turn})
    function = {"name": "web_search", "arguments": '{"q": 1}'}
    calls = [{"id": "srvtoolu_1", "type": "function", "function": function}]
    assert call == {"role": "assistant", "content": "I look.", "tool_calls": calls}
    assert (given["role"], given["name"]) == ("tool", "web_search")
    assert json.loads(given["content"]) == [
        {"type": "web_search_result", "title": "T", "url": "u"},
    ]
    assert said == {"role": "assistant", "content": "It rains."}


def test_a_call_of_the_client_beside_one_of_anthropic_stays_the_last() -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "A" * 99}
    fetched = searched("x", {"type": "web_fetch_result", "content": {"source": pdf}}, "web_fetch")
    turn = [use("toolu_a", "time"), fetched]
    given = {"role": "user", "content": [result("toolu_a", "noon")]}
    messages = converted(USER, {"role": "assistant", "content": turn}, given)
    names = [m["tool_calls"][0]["function"]["name"] for m in messages if "tool_calls" in m]
    assert names == ["web_fetch", "time"]
    assert [m["role"] for m in messages[2:]] == ["tool", "assistant", "tool"]
    assert "AAA" not in messages[2]["content"]
    assert messages[-1]["tool_call_id"] == "a"


def test_a_summary_stands_for_all_that_came_before_it() -> None:
    summary: Json = {"type": "compaction", "content": "We met."}
    begun = [text("old"), use("toolu_a", "time"), summary, text("new")]
    told = converted(
        {"role": "system", "content": "old"}, USER, {"role": "assistant", "content": begun}, USER
    )
    assert told[0] == {"role": "user", "content": "We met."}
    assert told[1] == {"role": "assistant", "content": "new"}
    assert len(told) == 3
    old = {"role": "assistant", "content": [text("old"), summary, text("new")]}
    summary["content"] = None  # it failed, so all stays
    assert [m["role"] for m in converted(USER, old)] == ["user", "assistant"]
    assert converted(USER, old)[1]["content"] == "oldnew"


def test_where_another_model_went_on_nothing_is_told() -> None:
    hop = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}
    said = [text("a"), hop, text("b")]
    assert converted(USER, {"role": "assistant", "content": said})[1]["content"] == "ab"


IMAGE = image("AA==")
EMPTY = {"type": "image"}
PDF = {
    "type": "document",
    "source": {"type": "base64", "data": "x", "media_type": "application/pdf"},
}


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        ({"role": "user", "content": [text("a"), EMPTY]}, "messages.0.content.1"),
        ({"role": "user", "content": [PDF]}, "messages.0.content.0.source"),
        (
            {"role": "user", "content": [result("a", [PDF])]},
            "messages.0.content.0.content.0.source",
        ),
        ({"role": "user", "content": [{"type": "container_upload"}]}, "messages.0.content.0"),
        ({"role": "user", "content": [result("a", [EMPTY])]}, "messages.0.content.0.content.0"),
        ({"role": "user", "content": [result("a", [5])]}, "messages.0.content.0.content"),
        ({"role": "user", "content": [result("a", 5)]}, "messages.0.content.0.content"),
        (
            {"role": "user", "content": [{"type": "tool_result"}]},
            "messages.0.content.0.tool_use_id",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content.0"),
        ({"role": "user", "content": []}, "messages.0.content"),
        ({"role": "user", "content": [use("a", "f")]}, "messages.0.content.0"),
        ({"role": "assistant", "content": [result("a", "x")]}, "messages.0.content.0"),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]},
            "messages.0.content.0",
        ),
        ({"role": "assistant", "content": [{"type": "server_tool_use"}]}, "messages.0.content.0"),
        ({"role": "system", "content": [IMAGE]}, "messages.0.content.0"),
        ({"role": "assistant", "content": [IMAGE]}, "messages.0.content.0"),
        ({"role": "system", "content": ""}, "messages"),
    ],
)
def test_what_a_model_of_text_can_not_take(turn: Json, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        converted(turn)
    assert caught.value.param == param


words = st.sampled_from(["", "a", "b ", "\n", "ünï", "<|im_end|>"])
blocks = st.builds(text, words)
turns = st.one_of(
    st.builds(lambda c: {"role": "user", "content": c}, words | st.lists(blocks, min_size=1)),
    st.builds(lambda c: {"role": "system", "content": c}, words | st.lists(blocks)),
    st.builds(
        lambda c: {"role": "assistant", "content": c},
        words | st.lists(blocks | st.builds(use, words, st.just("f")), max_size=3),
    ),
    st.builds(
        lambda c: {"role": "user", "content": c},
        st.lists(st.builds(result, words, words | st.lists(blocks)) | blocks, min_size=1),
    ),
)


def letters(messages: list[Json]) -> str:
    """All text in its order, without space."""
    return "".join("".join(m["content"]) for m in messages).replace("\n", "").replace(" ", "")


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(turns, min_size=1, max_size=6))
def test_more_turns_leave_the_earlier_ones_in_place(conversation: list[Json]) -> None:
    """So a prompt begins as the one before it did, whatever roles there are."""
    whole = converted(USER, *conversation)
    for size in range(len(conversation)):
        begun = converted(USER, *conversation[:size])
        assert whole[: len(begun) - 1] == begun[:-1]
        assert letters(whole).startswith(letters(begun))
        assert whole[len(begun) - 1]["role"] == begun[-1]["role"]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(turns, min_size=1, max_size=6))
def test_no_two_neighbours_have_one_role_but_results(conversation: list[Json]) -> None:
    messages = converted(USER, *conversation)
    roles = [message["role"] for message in messages]
    assert all(a != b or a == "tool" for a, b in pairwise(roles))
