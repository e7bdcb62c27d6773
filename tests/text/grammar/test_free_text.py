"""Calls in free text: until the model opens one it is as free as without the grammar."""

import json
from typing import Any

import pytest

from omlx_server.core.request import Constraint
from omlx_server.text.answers.answer import AnswerParser
from omlx_server.text.answers.form import AnswerForm
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.tools import CallSyntax, Function, free_calls
from omlx_server.text.grammar.wrappers import FreeTextConstraint
from omlx_server.text.parts import Part, assemble
from omlx_server.text.tool_calls.formats import FAMILIES, JSON_TOOLS, CallFormat, json_syntax
from tests.text.grammar.walks import Words, allowed

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Köln"]}, "days": {"enum": [1, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = Function("get_weather", PARAMETERS, strict=True)
ARGUMENTS = '{"city": "Köln", "days": 3}'


def free(grammars: Grammars, syntax: CallSyntax, *, many: bool = True) -> Constraint:
    grammar = free_calls([WEATHER], lambda _: None, many=many, syntax=syntax)
    return FreeTextConstraint(grammars.compile(grammar), grammars.vocabulary)


def is_free(constraint: Constraint, words: Words) -> bool:
    every = list(range(words.vocabulary.size))
    return allowed(constraint) == every and list(constraint.forced()) == [] and not constraint.done


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_is_masked_or_forced_but_a_call(
    tiny: Grammars, tiny_words: Words, name: str
) -> None:
    """For the markup of every family; what comes of a call its own parser reads."""
    family = FAMILIES[name]
    syntax = json_syntax(family)
    constraint = free(tiny, syntax)
    ends = tiny_words.vocabulary.eos_ids
    # Plain text, half a character, a control token, half a marker.
    text = [*tiny_words.spell("Well, 蓝 \n"), *tiny_words.spell("é")[:1], *ends[:1]]
    for token in [*text, *tiny_words.spell("Hm " + syntax.begin[:-1])]:
        assert is_free(constraint, tiny_words)
        constraint.take(token)
    head = syntax.head.replace("{name}", '"get_weather"')
    said = f"{syntax.begin[-1]}{syntax.before}{{{head}{ARGUMENTS}"
    whole = tiny_words.spell(said + "}" + syntax.after + syntax.end)
    masked = 0
    for token in whole:
        assert token in allowed(constraint) and constraint.problem is None
        masked += not is_free(constraint, tiny_words)
        assert not masked or not set(ends) & set(allowed(constraint))
        constraint.take(token)
    assert masked > 20 and is_free(constraint, tiny_words)
    (call,) = read(tiny_words, family, "Hm " + syntax.begin[:-1] + tiny_words.text(whole))
    assert call == ("get_weather", json.loads(ARGUMENTS))


def read(words: Words, family: CallFormat, text: str) -> list[tuple[str, Any]]:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
    answer = AnswerParser(words.tokenizer, AnswerForm(family=family, tools=(tool,)))
    parts: list[Part] = []
    for token in words.spell(text):
        parts += answer.add(token).parts
    parts += answer.finish()
    return [(call.name, json.loads(call.arguments)) for call in assemble(parts).calls]


def test_an_open_call_is_kept_to_and_a_copy_as_well(tiny: Grammars, tiny_words: Words) -> None:
    constraint = free(tiny, CallSyntax())
    for token in tiny_words.spell('Hm <tool_call>\n{"name": "get_weather", "arguments": {"c'):
        constraint.take(token)
    copied = constraint.copy()
    assert tiny_words.text(list(copied.forced())).startswith("ity")
    assert allowed(copied) == allowed(constraint) == list(copied.forced())[:1]


def test_where_calls_are_not_parallel_one_is_the_end(tiny: Grammars, tiny_words: Words) -> None:
    constraint = free(tiny, json_syntax(JSON_TOOLS), many=False)
    text = f'Hm <tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
    for token in tiny_words.spell(text):
        assert not constraint.done
        constraint.take(token)
    assert constraint.done and allowed(constraint) == tiny_words.vocabulary.eos_ids
