"""The text of a custom call, read from the arguments of the function that stands for its tool."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_server.api.chat.custom_tools import InputReader, arguments_of, input_of

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
