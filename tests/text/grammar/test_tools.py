"""Calls that are forced, and calls in free text."""

import json
import re
from typing import Any

import pytest

from omlx_server.core.request import Constraint
from omlx_server.errors import BadRequest
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.quoted_lark import quoted_lark
from omlx_server.text.grammar.tools import CallSyntax, Function, forced_calls, free_calls
from tests.api.tool_types import LARK
from tests.text.grammar.walks import Words, accepts, allowed, validate, walk

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = Function("get_weather", PARAMETERS, strict=True)
# A name that begins another one.
GET = Function("get", {"properties": {"tags": {"type": "array", "uniqueItems": True}}})
NOW = Function("now")
ALL = [WEATHER, GET, NOW]
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def none_special(_: str) -> None:
    return None


def calls(text: str) -> list[Any]:
    return [json.loads(inner) for inner in CALL.findall(text)]


def check(call: Any) -> None:
    assert list(call) == ["name", "arguments"]
    assert isinstance(call["arguments"], dict)
    if call["name"] == "get_weather":
        validate(PARAMETERS, call["arguments"])
    if call["name"] == "now":
        assert call["arguments"] == {}


def test_an_error_of_a_schema_names_the_tool_and_quotes_no_grammar(tiny: Grammars) -> None:
    bad = Function("bad", {"properties": {"a": {"pattern": "("}}}, param="tools.1.parameters")
    for spec in (
        forced_calls([WEATHER, bad], none_special, many=False),
        free_calls([WEATHER, bad], none_special, many=True),
    ):
        with pytest.raises(BadRequest) as raised:
            tiny.compile(spec)
        assert raised.value.param == "tools.1.parameters"
        assert raised.value.message.startswith("tools.1.parameters can't be used: regex parse")
        assert "%json" not in raised.value.message and "body" not in raised.value.message


MET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "abc": {"type": "string", "pattern": "^(?!x)[a-z]+$"},
        "tags": {"type": "object", "patternProperties": {"^a": {"type": "null"}, "b$": {}}},
    },
    "patternProperties": {"^a": {"type": "integer"}},
    "propertyNames": {"minLength": 1},
    "required": ["abc", "tags"],
}


@pytest.mark.parametrize("seed", range(3))
def test_a_tool_that_promises_nothing_is_called_whatever_its_schema(
    tiny: Grammars, tiny_words: Words, seed: int
) -> None:
    constraint = tiny.compile(forced_calls([Function("f", MET)], none_special, many=False))
    [call] = calls(walk(constraint, tiny_words, seed, free=30))
    assert isinstance(call["arguments"]["abc"], str)
    assert isinstance(call["arguments"]["tags"], dict)


@pytest.fixture
def several(tiny: Grammars) -> Constraint:
    return tiny.compile(forced_calls(ALL, none_special, many=True))


@pytest.fixture
def single(tiny: Grammars) -> Constraint:
    return tiny.compile(forced_calls(ALL, none_special, many=False))


@pytest.mark.parametrize("seed", range(6))
def test_forced_calls_are_calls_and_nothing_else(
    several: Constraint, tiny_words: Words, seed: int
) -> None:
    text = walk(several, tiny_words, seed, free=40)
    found = calls(text)
    assert found
    assert CALL.sub("", text).strip("\n") == ""
    for call in found:
        check(call)


ONE = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WEATHER_CALL = ONE.replace("now", "get_weather").replace("{}", '{"city": "Köln", "days": 3}')


def test_many_or_one(several: Constraint, single: Constraint, tiny_words: Words) -> None:
    assert accepts(several, tiny_words, f"{ONE}\n{ONE}\n{ONE}")
    assert not accepts(several, tiny_words, "")
    assert accepts(single, tiny_words, ONE)
    assert not accepts(single, tiny_words, f"{ONE}\n{ONE}")


def test_after_the_last_call_only_the_end_comes(single: Constraint, tiny_words: Words) -> None:
    for token in tiny_words.spell(ONE):
        single.take(token)
    assert single.problem is None
    assert single.done


def test_a_named_function_is_the_only_one(tiny: Grammars, tiny_words: Words) -> None:
    constraint = tiny.compile(forced_calls([NOW], none_special, many=False))
    # Nothing is left to the model.
    assert tiny_words.text(constraint.forced()) == ONE
    assert walk(constraint, tiny_words, 1) == ONE


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ('{"city": "Rom", "days": 3}', True),
        ('{"city": "Rom", "days": 2}', False),
        ('{"city": "Rom"}', False),
        ('{"city": "Rom", "days": 3, "x": 1}', False),
        ("[]", False),
    ],
)
def test_arguments_follow_the_schema(
    several: Constraint, tiny_words: Words, arguments: str, fits: bool
) -> None:
    text = ONE.replace("now", "get_weather").replace("{}", arguments)
    assert accepts(several, tiny_words, text) is fits


def test_a_strict_schema_is_kept_or_refused(tiny: Grammars) -> None:
    with pytest.raises(BadRequest, match="'uniqueItems' is not supported") as raised:
        forced_calls(
            [Function("get", GET.parameters, strict=True, param="tools.0.function.parameters")],
            none_special,
            many=False,
        )
    assert raised.value.param == "tools.0.function.parameters"
    assert tiny.compile(forced_calls([GET], none_special, many=False)).problem is None


@pytest.mark.parametrize("parameters", [{"type": "string"}, "x", False, {"type": ["object"]}])
def test_parameters_describe_an_object(parameters: Any) -> None:
    with pytest.raises(BadRequest):
        forced_calls([Function("f", parameters)], none_special, many=False)


def test_no_tools_can_not_be_forced() -> None:
    with pytest.raises(BadRequest):
        forced_calls([], none_special, many=True)


def test_free_text_stays_free_until_a_call_begins(tiny: Grammars, tiny_words: Words) -> None:
    constraint = tiny.compile(free_calls([WEATHER], none_special, many=True))
    for text in ("", "Hi! <tool> {}", f"Let me see.\n{ONE.replace('now', 'x')[:9]}"):
        assert accepts(constraint, tiny_words, text)
    good = ONE.replace("now", "get_weather").replace("{}", '{"city": "Rom", "days": 3}')
    assert accepts(constraint, tiny_words, good)
    assert accepts(constraint, tiny_words, f"I look.\n{good}\nAnd: {good}. Done")
    assert not accepts(constraint, tiny_words, f"I look.\n{ONE}")
    assert not accepts(constraint, tiny_words, "I look. <tool_call>")


def test_the_text_of_a_call_matches_its_grammar(tiny: Grammars, tiny_words: Words) -> None:
    shell = Function("shell", strict=True, input=quoted_lark(LARK))
    nested = Function("nest", strict=True, input=quoted_lark('start: "(" start? ")"'))
    spec = free_calls([shell, nested, NOW], none_special, many=True)
    assert spec.symbols == 0, "what is recursive runs in a process of its own"
    constraint = tiny.compile(spec)
    for name, text, fits in (
        ("shell", '+"a\n-\\\n', True),
        ("shell", "+a", False),
        ("nest", "(())", True),
        ("nest", "(()", False),
    ):
        arguments = json.dumps({"input": text})
        call = ONE.replace("now", name).replace("{}", arguments)
        assert accepts(constraint, tiny_words, f"I look.\n{call}\nDone.") is fits


def test_one_call_at_most_is_the_end_of_the_text(tiny: Grammars, tiny_words: Words) -> None:
    constraint = tiny.compile(free_calls([NOW], none_special, many=False))
    assert accepts(constraint, tiny_words, "no call")
    assert accepts(constraint, tiny_words, f"text {ONE}")
    assert not accepts(constraint, tiny_words, f"text {ONE}{ONE}")
    assert not accepts(constraint, tiny_words, f"text {ONE} text")


MARKED = CallSyntax(begin="<|im_start|>", end="<|end|>")


def test_markers_that_are_control_tokens_are_those_tokens(
    tiny: Grammars, tiny_words: Words
) -> None:
    names = {"<tool_call>": "<|im_start|>", "</tool_call>": "<|end|>"}
    ids = {text: tiny_words.special(name) for text, name in names.items()}
    constraint = tiny.compile(forced_calls([NOW], ids.get, many=False))
    assert allowed(constraint) == [tiny_words.special("<|im_start|>")]
    tokens = [tiny_words.special("<|im_start|>")]
    tokens += tiny_words.spell('\n{"name": "now", "arguments": {}}\n')
    tokens += [tiny_words.special("<|end|>")]
    for token in tokens:
        constraint.take(token)
    assert constraint.problem is None
    assert constraint.done


def test_a_control_token_begins_a_call_in_free_text(tiny: Grammars, tiny_words: Words) -> None:
    special = tiny_words.vocabulary.special_id
    constraint = tiny.compile(free_calls([NOW], special, many=True, syntax=MARKED))
    for token in tiny_words.spell("Hi <|im_start|>"):  # its text only
        constraint.take(token)
    assert tiny_words.spell("x")[0] in allowed(constraint)
    constraint.take(tiny_words.special("<|im_start|>"))
    assert constraint.problem is None
    assert tiny_words.text(constraint.forced()).startswith('\n{"name": "now"')
