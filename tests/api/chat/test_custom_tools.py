"""The text of a custom call, read from the arguments of the function that stands for its tool."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.tools import InputReader, arguments_of, input_of, toolbox_of
from tests.api.tool_types import LARK, RECURSIVE, REGEX

LETTERS = st.text(alphabet=st.sampled_from('a"\\\n\té😀/{}'), max_size=12)


@given(LETTERS, st.booleans(), st.data())
def test_a_text_is_the_same_however_its_arguments_are_cut(
    text: str, is_ascii: bool, data: st.DataObject
) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii)
    reader, told = InputReader(), ""
    while arguments:
        size = data.draw(st.integers(1, 4))
        told += reader.feed(arguments[:size])
        arguments = arguments[size:]
    assert told + reader.finish() == text


def test_a_text_comes_as_soon_as_it_is_certain() -> None:
    reader = InputReader()
    fragments = ['{"inp', 'ut": "a', "b\\", "n", "\\ud83d", "\\ude00", '"}']
    assert [reader.feed(one) for one in fragments] == ["", "a", "b", "\n", "", "😀", ""]
    assert reader.finish() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (arguments_of('a"\n'), 'a"\n'),
        ("", ""),
        ("{}", ""),
        ('{"patch": "a\\n"}', "a\n"),
        ('{"why": 1, "input": "a"}', "a"),
        ('{"a": "b", "c": "d"}', '{"a": "b", "c": "d"}'),
        ('{"input": {"a": 1}}', '{"input": {"a": 1}}'),
        ('{"a": ' + "1" * 200 + "}", '{"a": ' + "1" * 200 + "}"),
        ('{"input": "\\ud83d!"}', "?!"),
        ('{"a": "\\ud83d"}', "?"),
        ("no JSON", "no JSON"),
    ],
)
def test_nothing_of_other_arguments_is_lost(arguments: str, text: str) -> None:
    assert input_of(arguments) == text
    reader = InputReader()
    assert "".join(map(reader.feed, arguments)) + reader.finish() == text


@pytest.mark.parametrize(
    ("syntax", "definition", "is_strict"),
    [("regex", REGEX, True), ("lark", LARK, True), ("lark", RECURSIVE, False), ("", "", False)],
)
def test_a_grammar_holds_where_the_model_is_free_to_call(
    syntax: str, definition: str, is_strict: bool
) -> None:
    custom: dict[str, object] = {"name": "shell"}
    if syntax:
        grammar = {"syntax": syntax, "definition": definition}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    message = {"role": "user", "content": "Hi"}
    tools = [{"type": "custom", "custom": custom}]
    chat = ChatRequest.model_validate({"model": "m", "messages": [message], "tools": tools})
    toolbox = toolbox_of(chat)
    assert toolbox.strict is is_strict
    (shown,) = toolbox.shown
    told = shown["function"].get("description", "")
    assert definition in told and shown["function"]["parameters"]["required"] == ["input"]
