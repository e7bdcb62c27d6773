"""The chat templates of published models with what clients send: tools with parts left out, calls
whose arguments are broken, several calls, an empty system message."""

from collections.abc import Mapping
from typing import Any

import pytest

from omlx_server.text.dialect import dialect_of
from omlx_server.text.prompt import PromptRenderer
from omlx_server.text.templates.messages import without_empty_systems
from omlx_server.text.templates.template import ChatTemplate
from tests.text.published import published, tokenizer_with

# It reads `functions` and `datetime`, which nobody but its makers' own server passes.
UNKNOWN = {"fireworks-ai-llama-3-firefunction-v2"}

PROPERTIES: Mapping[str, Any] = {
    "plain": {"type": "string", "description": "x"},
    "bare": {"type": "string"},
    "untyped": {"description": "x"},
    "types": {"type": ["string", "null"], "description": "x"},
    "any": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "x"},
    "true": True,
    "enum": {"enum": ["x", 1, None]},
    "list": {"type": "array", "items": {"type": "object"}},
    "ref": {"$ref": "#/$defs/x"},
}
FUNCTIONS: Mapping[str, dict[str, Any]] = {
    "bare": {},
    "null": {"description": None, "parameters": None},
    "no parameters": {"description": "d"},
    "empty parameters": {"description": "d", "parameters": {}},
    "no properties": {"description": "d", "parameters": {"type": "object"}},
    **{
        name: {"parameters": {"type": "object", "properties": {"a": value}}}
        for name, value in PROPERTIES.items()
    },
}
ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "right": {"arguments": '{"city": "Rome"}'},
    "an object": {"arguments": {"city": "Rome"}},
    "empty": {"arguments": ""},
    "null": {"arguments": None},
    "JSON's null": {"arguments": "null"},
    "cut": {"arguments": '{"city": "Ro'},
    "a list": {"arguments": '["Rome"]'},
    "a text": {"arguments": '"Rome"'},
    "absent": {},
}


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", **fields}}


TOOL = tool(
    description="Look.",
    parameters={"type": "object", "properties": {"city": PROPERTIES["plain"]}},
)
ASKS = {"role": "user", "content": "c0ffee1"}


def called(*arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    ids = [f"c0ffee00{number}" for number in range(len(arguments))]
    calls = [
        {"id": id, "type": "function", "function": {"name": "look", **given}}
        for id, given in zip(ids, arguments, strict=True)
    ]
    results = [
        {"role": "tool", "name": "look", "tool_call_id": id, "content": f"c0ffee2{id}"}
        for id in ids
    ]
    return [ASKS, {"role": "assistant", "content": "", "tool_calls": calls}, *results]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    found = published(tmp_path_factory.mktemp("published"))
    assert len(found) == 70
    return {name: source for name, source in found.items() if name not in UNKNOWN}


@pytest.fixture(scope="module")
def renderers(sources: Mapping[str, str]) -> Mapping[str, PromptRenderer]:
    made: dict[str, PromptRenderer] = {}
    for name, source in sources.items():
        tokenizer = tokenizer_with(source)
        template = ChatTemplate(tokenizer)
        made[name] = PromptRenderer(template, dialect_of(tokenizer, template.render), [TOOL], {})
    return made


def shown(prompts: PromptRenderer, messages: list[dict[str, Any]], *tools: dict[str, Any]) -> str:
    given = tools if prompts.dialect.shows_tools else None
    return prompts.template.render(prompts.told(messages), tools=given)


def test_tools_with_parts_left_out(renderers: Mapping[str, PromptRenderer]) -> None:
    for name, prompts in renderers.items():
        for kind, function in FUNCTIONS.items():
            text = shown(prompts, [ASKS], tool(**function))
            assert "c0ffee1" in text and "look" in text, (name, kind)


def test_arguments_of_any_kind(renderers: Mapping[str, PromptRenderer]) -> None:
    for name, prompts in renderers.items():
        for kind, arguments in ARGUMENTS.items():
            text = shown(prompts, called(arguments), TOOL)
            assert "c0ffee2" in text, (name, kind)


def test_several_calls_and_a_user_who_breaks_in(
    renderers: Mapping[str, PromptRenderer],
) -> None:
    right = ARGUMENTS["right"]
    for name, prompts in renderers.items():
        told = [*called(right, right), {"role": "user", "content": "c0ffee3"}]
        text = shown(prompts, told, TOOL)
        places = [text.find(word) for word in ("c0ffee2c0ffee000", "c0ffee2c0ffee001", "c0ffee3")]
        assert -1 not in places and places == sorted(places), name


def test_an_empty_system_message_is_told(renderers: Mapping[str, PromptRenderer]) -> None:
    """Without it a template may tell the model a persona of its own, or the makers' rules."""
    told = without_empty_systems([{"role": "system", "content": ""}, ASKS])
    matters = 0
    for name, prompts in renderers.items():
        if prompts.dialect.systems.first and prompts.dialect.shows_tools:
            assert prompts.told(told) == told, name
            matters += shown(prompts, told) != shown(prompts, [ASKS])
    assert matters >= 30, matters
