"""docs/chat-completions.md has every field that the program takes, with its type and bounds."""

import re

import pytest

from omlx_server.api.chat.request import (
    UNSUPPORTED,
    ChatContentPart,
    ChatCustomTool,
    ChatFunctionTool,
    ChatRequest,
    CustomDefinition,
    FunctionDefinition,
    Grammar,
    ImageUrl,
    Message,
)
from tests.docs.blocks import ROOT
from tests.docs.schema_words import fields_of, words

PAGE = (ROOT / "docs" / "chat-completions.md").read_text(encoding="utf-8")
ROW = re.compile(r"\| `([\w.]+)` \| (.*?) \| .*\|")


def rows(text: str) -> dict[str, str]:
    """What the tables say that each field takes. Each field has one row."""
    matches = filter(None, map(ROW.fullmatch, text.splitlines()))
    found = [(match[1], match[2]) for match in matches]
    assert len(found) == len(dict(found))
    return dict(found)


def section(name: str) -> str:
    (text,) = re.findall(rf"(?ms)^## {name}\n(.*?)(?=^## |\Z)", PAGE)
    return str(text)


def below(prefix: str, fields: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}.{name}": takes for name, takes in fields.items()}


def test_every_field_of_a_request_is_told() -> None:
    before, found, _ = PAGE.partition("\n## A message\n")
    assert found
    assert rows(before) == fields_of(ChatRequest)


def test_what_is_refused_is_told_as_refused() -> None:
    assert rows(section("What is refused")).keys() == UNSUPPORTED.keys()


TOLD = {
    "A message": fields_of(Message),
    "A part of a message": fields_of(ChatContentPart) | below("image_url", fields_of(ImageUrl)),
    "A tool": {"type": fields_of(ChatFunctionTool)["type"]}
    | below("function", fields_of(FunctionDefinition)),
    "A custom tool": {"type": fields_of(ChatCustomTool)["type"]}
    | below("custom", fields_of(CustomDefinition))
    | {"custom.format.type": "`text`, `grammar`"}
    | below("custom.format.grammar", fields_of(Grammar)),
}


@pytest.mark.parametrize("name", TOLD)
def test_every_field_of_what_a_request_holds_is_told(name: str) -> None:
    assert rows(section(name)) == TOLD[name]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"type": "boolean"}, "`true`, `false`"),
        ({"type": "integer", "minimum": 1, "maximum": 128}, "integer, 1 to 128"),
        ({"type": "integer", "minimum": 0, "maximum": 1 << 31}, "integer, 0 or more"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 10}, "number, above 0, 10 at most"),
        ({"anyOf": [{"enum": ["a", "b"]}, {"$ref": "#"}, {"type": "null"}]}, "`a`, `b`, object"),
        ({"type": "array", "maxItems": 3, "items": {"type": "string"}}, "list of texts, 3 at most"),
        ({}, "nothing"),
    ],
)
def test_what_a_field_takes_in_words(field: dict[str, object], said: str) -> None:
    assert words(field) == said
