"""Every family's answers, cut at any place; and anything else, which must come back."""

import json
import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.text.parts import Arguments, CallStart, Part, Text, assemble
from omlx_server.text.tool_calls.formats import FAMILIES
from omlx_server.text.tool_calls.parser import ToolParser
from tests.text.tool_calls.answers import ANSWERS
from tests.text.tool_calls.meanings import Answer
from tests.text.tool_calls.reading import deltas_of, parser_of, read

bounded = settings(max_examples=150, deadline=None, derandomize=True)
answers = pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: f"{a.family}-{a.written[:60]!r}")


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def fragments_of(family: str) -> list[str]:
    """The markers, words and signs of the family's answers, and what breaks JSON and Python."""
    written = " ".join(a.written for a in ANSWERS if a.family == family)
    found = set(re.findall(r"<[^<>]*>|\[[A-Z_]+\]|\w+|[^\w]", written))
    odd = {"\\", "\\u", "\\ud800", "True", "1e999", "NaN", "'", "é", "</", 'b"x"', "\x00", "}}"}
    deep = {"[" * 300, "9" * 5000, '{"a":' * 1200}
    return sorted(found | odd | deep | {FAMILIES[family].start})


FRAGMENTS = {family: fragments_of(family) for family in FAMILIES}


@st.composite
def soups(draw: st.DrawFn) -> tuple[str, str]:
    """A family, and its answers with pieces put in and cut out."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    fragments = st.sampled_from(FRAGMENTS[family])
    known = st.sampled_from([a.written for a in ANSWERS if a.family == family])
    text = draw(st.one_of(known, st.lists(fragments, max_size=30).map("".join)))
    for _ in range(draw(st.integers(0, 4))):
        place, length = draw(st.integers(0, len(text))), draw(st.integers(0, 6))
        text = text[:place] + draw(fragments) + text[place + length :]
    return family, text


def test_every_family_has_answers() -> None:
    assert {answer.family for answer in ANSWERS} == set(FAMILIES)


@answers
def test_an_answer_is_read(answer: Answer) -> None:
    result = read(answer.family, [answer.written])
    assert [(call.name, json.loads(call.arguments)) for call in result.calls] == answer.calls
    assert result.text == answer.text
    assert [call.id for call in result.calls] == [f"call_{n:x}" for n in range(len(result.calls))]


@answers
def test_cut_at_every_character_it_is_the_same(answer: Answer) -> None:
    whole = read(answer.family, [answer.written])
    assert read(answer.family, answer.written) == whole
    for place in range(len(answer.written)):
        assert read(answer.family, cut(answer.written, [place])) == whole


@bounded
@given(answer=st.sampled_from(ANSWERS), places=st.lists(st.integers(0, 2000), max_size=12))
def test_cut_at_random_places_it_is_the_same(answer: Answer, places: list[int]) -> None:
    pieces = cut(answer.written, places)
    assert read(answer.family, pieces) == read(answer.family, [answer.written])


@answers
def test_ended_at_every_character_the_deltas_stay_a_beginning(answer: Answer) -> None:
    """What an answer that was cut off says is valid, and names no call it has not begun."""
    names = [name for name, _ in answer.calls]
    for place in range(len(answer.written)):
        result = read(answer.family, [answer.written[:place]])
        assert [call.name for call in result.calls] == names[: len(result.calls)]
        for call in result.calls:
            assert isinstance(json.loads(call.arguments), dict)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(soup=soups(), places=st.lists(st.integers(0, 9000), max_size=6))
def test_whatever_comes_is_read_alike_and_not_lost(
    soup: tuple[str, str], places: list[int]
) -> None:
    family, text = soup
    result = read(family, [text])
    assert read(family, cut(text, places)) == result
    if len(text) < 400:
        assert read(family, text) == result
    if not result.calls:
        assert result.text == text
    rest = iter(text)
    assert all(char in rest for char in result.text)
    for call in result.calls:
        assert call.name
        json.loads(call.arguments.encode(), parse_int=str)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(family=st.sampled_from(sorted(FAMILIES)), text=st.text(max_size=40))
def test_text_without_markers_is_passed_on_at_once(family: str, text: str) -> None:
    parser = parser_of(family)
    starts = FAMILIES[family].starts
    shown = "a"
    assert parser.feed("a") == [Text("a")]
    for place, char in enumerate(text):
        shown += assembled_text(parser.feed(char))
        so_far = "a" + text[: place + 1]
        assert so_far.startswith(shown)
        assert any(start.startswith(so_far[len(shown) :]) for start in starts)
    assert shown + assembled_text(parser.finish()) == "a" + text


def assembled_text(deltas: list[Part]) -> str:
    assert all(isinstance(delta, Text) for delta in deltas)
    return assemble(deltas).text


# What comes before a call's arguments, and its end.
STREAMING = {
    "json_tools": ('<tool_call>\n{"name": "clock", "arguments": ', "}\n</tool_call>"),
    "qwen3_coder": ('<tool_call>\n{"name": "clock", "arguments": ', "}\n</tool_call>"),
    "mistral": ("[TOOL_CALLS]clock[ARGS]", ""),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.clock:0"
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
}
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@bounded
@given(
    family=st.sampled_from(sorted(STREAMING)),
    value=st.dictionaries(st.text(max_size=5), json_values, max_size=4),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
    places=st.lists(st.integers(0, 500), max_size=8),
)
def test_valid_arguments_come_out_as_they_were_written(
    family: str,
    value: dict[str, object],
    ascii_only: bool,
    indent: int | None,
    places: list[int],
) -> None:
    before, after = STREAMING[family]
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    result = read(family, cut(before + written + after, places))
    assert [(call.name, call.arguments) for call in result.calls] == [("clock", written)]
    assert result.text == ""


@pytest.mark.parametrize("family", STREAMING)
def test_json_arguments_stream_before_their_end(family: str) -> None:
    before, after = STREAMING[family]
    parser = parser_of(family)
    assert parser.feed(before + "{") == [CallStart(0, "call_0", "clock"), Arguments(0, "{")]
    assert parser.feed('"city": "Ro') == [Arguments(0, '"city": "Ro')]
    assert parser.feed("me") == [Arguments(0, "me")]
    assert parser.feed('"') == [Arguments(0, '"')]
    assert parser.feed("}") == [Arguments(0, "}")]
    assert parser.feed(after) + parser.finish() == []


def test_markup_streams_parameter_by_parameter() -> None:
    parser = parser_of("qwen3_coder")
    head = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n"
    assert parser.feed(head + "</parameter>\n") == []  # which may be a part of the value
    assert parser.feed("<parameter=days>") == [
        CallStart(0, "call_0", "get_weather"),
        Arguments(0, '{"city": "Rome"'),
    ]
    assert parser.feed("3</parameter></function>") == [Arguments(0, ', "days": 3}')]
    assert parser.feed("\n</tool_call>") + parser.finish() == []


def test_the_name_alone_is_not_yet_a_call() -> None:
    parser = parser_of("json_tools")
    assert parser.feed('<tool_call>{"name": "clock", "arguments": ') == []
    assert parser.finish() == [Text('<tool_call>{"name": "clock", "arguments": ')]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "f", "arguments": {"a": [1, {"b": "x', '{"a": [1, {"b": "x"}]}'),
        ('{"name": "f", "arguments": {"a": 1}</tool_call>', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": "x}\n</tool_call>', '{"a": "x}"}'),
        ('{"name": "f", "arguments": {"a": 1}}}</tool_call>', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}}\n</tool_ca', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": tr', '{"a": true}'),
        ('{"name": "f", "arguments": {"a": 1, "b": ', '{"a": 1}'),
        ("{'name': 'f', 'arguments': {'a': True,}}</tool_call>", '{"a": true}'),
        ('{"name": "f", "arguments": "{\\"a\\": [1"}</tool_call>', '{"a": [1]}'),
        ('{"name": "f", "arguments": ""}</tool_call>', "{}"),
        ('{"name": "f", "arguments": [1]}</tool_call>', "[1]"),
        ('{"name": "f", "arguments": "plain"}</tool_call>', '"plain"'),
    ],
)
def test_broken_json_is_repaired(written: str, arguments: str) -> None:
    result = read("json_tools", "<tool_call>" + written)
    assert [(call.name, call.arguments) for call in result.calls] == [("f", arguments)]
    assert result.text == ""


@pytest.mark.parametrize(
    ("family", "written", "arguments"),
    [
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\nmany\n"
         "</parameter>\n</function>\n</tool_call>", {"days": "many"}),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n"
         "<parameter=city>\nRo", {"days": 3}),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n"
         "</tool_call>", {"days": 3}),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\n1e999\n"
         "</parameter>\n</function>\n</tool_call>", {"days": "1e999"}),
        ("pythonic", "<|tool_call_start|>[get_weather(spec={1})]", {"spec": [1]}),
        ("pythonic", "<|tool_call_start|>[get_weather(days=1e999)]", {"days": "inf"}),
    ],
)  # fmt: skip
def test_odd_markup_is_still_a_call(
    family: str, written: str, arguments: dict[str, object]
) -> None:
    result = read(family, written)
    assert [(call.name, json.loads(call.arguments)) for call in result.calls] == [
        ("get_weather", arguments)
    ]
    assert result.text == ""


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("json_tools", '<tool_call>{"city": "Rome"}</tool_call>'),
        ("json_tools", '<tool_call>{"name": 1, "arguments": {}}</tool_call>'),
        ("json_tools", f'<tool_call>{{"name": {"9" * 5000}, "arguments": {{}}}}</tool_call>'),
        ("json_tools", "<tool_call></tool_call>"),
        ("json_tools", '<tool_call>{"name": "get_w'),
        ("json_tools", "A<tool_"),
        ("mistral", "[TOOL_CALLS]get_weather[ARGS]"),
        ("glm47", "<tool_call>I would call it now.</tool_call>"),
        ("glm47", "<tool_call>get_wea"),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRo"),
        ("qwen3_coder", 'Sure. <function=get_w"r>\n<parameter=city>Rome</parameter>\n</function>'),
        ("qwen3_coder", "<function=unknown>\n<parameter=city>\nRome\n</parameter>\n</function>"),
        ("qwen3_coder", "The tag is <function=, and <function="),
        ("kimi_k3", "<|open|>tools<|sep|><|open|>call index<|sep|><|close|>call<|sep|>"),
        ("gemma4", "<|tool_call>call:f{a:<tool_call|>"),
        ("gemma4", "<|tool_call>call:f{a:[}]}<tool_call|>"),
        ("function_gemma", "<start_function_call>call:f{a:[1,{b:}]}<end_function_call>"),
    ],
)  # fmt: skip
def test_what_never_becomes_a_call_comes_back(family: str, text: str) -> None:
    result = read(family, text)
    assert (result.text, result.calls) == (text, ())


def test_a_call_after_a_broken_one_counts() -> None:
    broken, good = '<tool_call>{"x": 1}</tool_call>', '<tool_call>{"name": "f"}</tool_call>'
    result = read("json_tools", broken + good)
    assert result.text == broken
    assert [call.name for call in result.calls] == ["f"]


def test_without_tools_a_bare_object_is_an_answer() -> None:
    text = '{"name": "clock", "arguments": {}}'
    assert read("json_tools", [text], []).text == text


def test_ids_are_unique_and_of_the_usual_form() -> None:
    parser = ToolParser(FAMILIES["json_tools"])
    deltas = parser.feed('<tool_call>{"name": "f"}</tool_call>' * 20) + parser.finish()
    ids = {delta.id for delta in deltas if isinstance(delta, CallStart)}
    assert len(ids) == 20
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", id) for id in ids)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_long_garbage_takes_no_time_that_grows_with_its_square(family: str) -> None:
    """Each of these took mlx-lm's parser minutes, or would have taken ours."""
    shape = FAMILIES[family]
    end = (shape.markup or shape.json).end
    for unit in ("call:f{", '">x', '{"a":', "[", shape.start):
        text = shape.start + unit * (20_000 // len(unit)) + end
        began = time.process_time()
        deltas_of(family, [text])
        assert time.process_time() - began < 3, unit


def test_a_long_gap_in_a_header_is_read_alike_however_it_is_cut() -> None:
    for begin in ("<tool_call><function=clock><parameter=", "<tool_call><function="):
        text = f"{begin}{' ' * 700}a>1</parameter></function></tool_call>"
        assert read("qwen3_coder", [text]) == read("qwen3_coder", list(text))


def test_a_key_of_blanks_takes_no_time() -> None:
    begun = time.process_time()
    read("glm47", list(f"<tool_call>clock<arg_key>{' ' * 590}"))
    assert time.process_time() - begun < 5
