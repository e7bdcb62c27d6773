"""The chat templates of published models, with what clients send: tools with parts left out, calls
whose arguments are broken, several calls, an empty system message. And the calls that the templates
themselves write: they come back equal, streamed at any cut, also behind a thought and a text that
quote the markers."""

import json
import random
import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import pytest

from omlx_server.text.dialect import Dialect, PromptRenderer, dialect_of
from omlx_server.text.parts import Assembled, Part, Text, assemble
from omlx_server.text.reasoning.splitter import make_splitter
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.templates.messages import without_empty_systems
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tool_calls.parser import ToolParser
from omlx_server.text.tool_calls.recipients import RecipientParser
from omlx_server.text.tool_calls.stream_parser import StreamParser
from omlx_server.text.tool_calls.values import Numbering
from tests.text.published import published, tokenizer_with

# Their templates do not show earlier calls, or not as the models write them.
NOT_SHOWN = {
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "LFM2.5-8B-A1B",  # a quote in a string is not escaped
    "ibm-granite-granite-3.3-2B-Instruct",
    "CohereForAI-c4ai-command-r-plus-tool_use",  # takes no list and no object
}

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "d"},
        "count": {"type": "integer", "description": "d"},
        "on": {"type": "boolean", "description": "d"},
        "ratio": {"type": "number", "description": "d"},
        "some-key": {"type": "string", "description": "d"},
        "list": {"type": "array", "items": {"type": "string"}, "description": "d"},
        "spec": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
            "description": "d",
        },
        "maybe": {"type": ["string", "null"], "description": "d"},
    },
    "required": ["text"],
}
NAMES = ("edit-file", "get_time")
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}}
    for name in NAMES
]
TEXTS = (
    "plain",
    " around ",
    "line\nline\n",
    "\n\nx",
    'say "hi"',
    "it's",
    "a\\nb \\ c",
    "日本 é 🌧",
    "12",
    "null",
    "true",
    '{"a": 1}',
    "[1]",
    "<b>x</b>",
    "a } b { c",
    "x, y: z=(1)",
    "</parameter> x",
    "<tool_call>",
    "</tool_call> y",
    "<function=f>",
    "def f():\n\treturn {'a': [1]}\n",
    "```json\n{}\n```",
)
Calls = list[tuple[str, dict[str, Any]]]


def some_calls(chance: random.Random) -> Calls:
    return [(chance.choice(NAMES), _arguments(chance)) for _ in range(chance.choice((1, 1, 2)))]


def _arguments(chance: random.Random) -> dict[str, Any]:
    possible: dict[str, Any] = {
        "count": chance.choice((0, -3, 2**60 + 1)),
        "on": chance.choice((True, False)),
        "ratio": chance.choice((1.5, -0.25)),
        "some-key": chance.choice(TEXTS),
        "list": chance.choices(TEXTS, k=2),
        "spec": {"a": chance.choice(TEXTS), "b": 3},
        "maybe": "x",
    }
    chosen = [key for key in possible if chance.random() < 0.4]
    return {"text": chance.choice(TEXTS), **{key: possible[key] for key in chosen}}


@pytest.fixture(scope="module")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, PromptRenderer]:
    made: dict[str, PromptRenderer] = {}
    for name, source in published(tmp_path_factory.mktemp("published")).items():
        markers = set(re.findall(r"<[|｜/]?[\w:▁]+[|｜]?>|\[/?[A-Z_]+\]", source))
        tokenizer = tokenizer_with(source, *sorted(markers))
        template = ChatTemplate(tokenizer)
        dialect = dialect_of(tokenizer, template.render)
        made[name] = PromptRenderer(template, dialect, TOOLS, {})
    assert len(made) == 70
    return made


@pytest.fixture(scope="module")
def callers(renderers: Mapping[str, PromptRenderer]) -> Mapping[str, PromptRenderer]:
    """Those whose calls can be compared with what their templates write."""
    made = {
        name: prompts
        for name, prompts in renderers.items()
        if prompts.dialect.shows_tools and name not in NOT_SHOWN
    }
    assert len(made) >= 50
    return made


# -- what clients send --------------------------------------------------------------------------

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


def shown(prompts: PromptRenderer, messages: list[dict[str, Any]], *tools: dict[str, Any]) -> str:
    given = tools if prompts.dialect.shows_tools else None
    return prompts.template.render(prompts.fitted(messages), tools=given)


def test_tools_with_parts_left_out(renderers: Mapping[str, PromptRenderer]) -> None:
    for name, prompts in renderers.items():
        for kind, function in FUNCTIONS.items():
            text = shown(prompts, [ASKS], tool(**function))
            assert "c0ffee1" in text, (name, kind)
            assert "look" in text or not prompts.dialect.shows_tools, (name, kind)


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
            assert prompts.fitted(told) == told, name
            matters += shown(prompts, told) != shown(prompts, [ASKS])
    assert matters >= 30, matters


# -- what the templates write ----------------------------------------------------------------------


def written(prompts: PromptRenderer, calls: Calls) -> str:
    """What the template writes of calls, and of what is behind them."""
    functions = [{"name": name, "arguments": json.dumps(given)} for name, given in calls]
    asked: list[dict[str, Any]] = [
        {"id": f"abcdefgh{i}", "type": "function", "function": function}
        for i, function in enumerate(functions)
    ]
    results = [
        {"role": "tool", "name": name, "tool_call_id": f"abcdefgh{i}", "content": "ok"}
        for i, (name, _) in enumerate(calls)
    ]
    user = {"role": "user", "content": "Hi."}
    assistant = {"role": "assistant", "content": "", "tool_calls": asked}
    told = prompts.fitted([user, assistant, *results])
    before = prompts.template.render(prompts.fitted([user]), tools=TOOLS)
    whole = prompts.template.render(told, tools=TOOLS, add_generation_prompt=False)
    same = (a == b for a, b in zip(before, whole, strict=False))
    common = sum(takewhile(bool, same))
    begun = whole.rfind("<", 0, common)
    return whole[begun if begun >= 0 and ">" not in whole[begun:common] else common :]


def read(dialect: Dialect, pieces: list[str], opening: Opening = Opening.FREE) -> Assembled:
    numbering = Numbering(lambda: "id")
    calls = ToolParser(dialect.family, TOOLS, numbering)
    parts: list[Part] = []

    def show(given: list[Part]) -> None:
        for part in given:
            apart = dialect.in_channels or not isinstance(part, Text)
            parts.extend([part] if apart else calls.feed(part.text))  # type: ignore[union-attr]

    style = dialect.style
    thoughts: StreamParser | None = None
    if dialect.recipients:
        thoughts = RecipientParser(numbering, NAMES)
    elif style:
        thoughts = make_splitter(style, opening, dialect.family.starts, numbering, NAMES)
    for piece in pieces:
        show(thoughts.feed(piece) if thoughts else [Text(piece)])
    show(thoughts.finish() if thoughts else [])
    return assemble([*parts, *calls.finish()])


def calls_of(answer: Assembled) -> Calls:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


@pytest.mark.parametrize("seed", range(12))
def test_calls_come_back_equal(callers: Mapping[str, PromptRenderer], seed: int) -> None:
    for name, prompts in callers.items():
        chance = random.Random(f"{name} {seed}")
        calls = some_calls(chance)
        calls = calls if prompts.dialect.calls.many else calls[:1]
        text = written(prompts, calls)
        whole = read(prompts.dialect, [text])
        assert calls_of(whole) == calls, (name, text)
        for cut in chance.sample(range(len(text)), 6):
            assert read(prompts.dialect, [text[:cut], text[cut:]]) == whole, (name, cut)


def test_a_marker_that_is_quoted_is_text(callers: Mapping[str, PromptRenderer]) -> None:
    calls: Calls = [("get_time", {"text": "now"})]
    for name, prompts in callers.items():
        dialect = prompts.dialect
        style, start = dialect.style, dialect.family.start
        text = written(prompts, calls)
        if dialect.in_channels or start not in text:  # as Llama's, without a marker
            continue
        said = f"I write {start}, then the call.\n"
        whole = read(dialect, [said + text], Opening.PAST)
        assert calls_of(whole) == calls and whole.text.startswith(said.rstrip()), name
        if style is None or any(end in text for end in style.ends):
            continue
        thought = f"I could write {text} or {start} now."
        whole = read(dialect, [f"{style.start}{thought}{style.end}{text}"])
        assert calls_of(whole) == calls, name
        if not any(end in thought for end in style.ends):
            assert whole.reasoning == thought, name
        left_open = read(dialect, [f"{style.start}Hm. {text}"])
        assert calls_of(left_open) == calls and left_open.reasoning[:3] == "Hm.", name
