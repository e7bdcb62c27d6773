"""From the fields of a request to what its answer must look like."""

import json
from typing import Any

import pytest

from omlx_server.errors import BadRequest
from omlx_server.text.grammar import to_grammar
from omlx_server.text.grammar.to_grammar import GrammarKind, GrammarSpec, from_request

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}, "required": ["b"]}
GBNF = 'root ::= "a"'


def made(**fields: Any) -> GrammarSpec:
    found = from_request(fields)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None, "grammar": None},
        {"response_format": {"type": "text"}},
        {"grammar": ""},
        {"structured_outputs": {"json_object": False}},
    ],
)
def test_a_free_answer_has_no_grammar(fields: dict[str, Any]) -> None:
    assert from_request(fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"structured_outputs": {"json_object": True}},
        {"guided_json_object": True},
    ],
)
def test_all_ways_to_ask_for_an_object_are_one_grammar(fields: dict[str, Any]) -> None:
    assert made(**fields) == to_grammar.json_object("x")
    assert made(**fields).trusted


@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}},
        {"guided_json": SCHEMA, "guided_regex": None},
        {"json_schema": SCHEMA},
    ],
)
def test_all_ways_to_give_a_schema_are_one_grammar(fields: dict[str, Any]) -> None:
    assert made(**fields) == to_grammar.json_schema(SCHEMA, "x")
    assert not made(**fields).trusted


def test_the_order_of_properties_is_kept() -> None:
    text = made(json_schema=SCHEMA).text
    assert text.index('"b"') < text.index('"a"')


@pytest.mark.parametrize("name", ["regex", "choice", "grammar"])
def test_regex_choice_and_grammar_come_by_both_names(name: str) -> None:
    value: Any = {"regex": "a+", "choice": ["a", "b"], "grammar": GBNF}[name]
    found = made(structured_outputs={name: value})
    assert found == made(**{f"guided_{name}": value})
    assert found.kind is GrammarKind(name)
    assert found.param == f"structured_outputs.{name}"


def test_a_grammar_can_stand_alone() -> None:
    assert made(grammar=GBNF) == to_grammar.grammar(GBNF, "x")


def test_white_space_is_part_of_the_grammar() -> None:
    patterns: list[dict[str, Any]] = [
        {},
        {"whitespace_pattern": "[ ]?"},
        {"disable_any_whitespace": True},
    ]
    found = {made(structured_outputs={"json": SCHEMA, **pattern}) for pattern in patterns}
    assert len(found) == 3
    assert made(guided_json=SCHEMA, guided_whitespace_pattern="[ ]?") in found


def test_a_client_has_no_say_in_the_options_of_the_engine() -> None:
    sly = {"x-guidance": {"lenient": True}, **SCHEMA}
    assert made(json_schema=sly) == made(json_schema=SCHEMA)


DEEP: Any = {}
for _ in range(5000):
    DEEP = {"items": DEEP}

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "json"}, "response_format", "must be an object"),
    ({"response_format": {}}, "response_format.type", "'json_schema'"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "'json_schema'"),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "must be an object",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}},
        "response_format.json_schema.schema",
        "must be an object or a boolean",
    ),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "structural_tag"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "is not JSON"),
    ({"structured_outputs": {"json": "[" * 9000}}, "structured_outputs.json", "is not"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", "true or false"),
    ({"guided_regex": 7}, "guided_regex", "must be a string"),
    ({"guided_choice": "a"}, "guided_choice", "list of strings"),
    ({"guided_choice": ["a", 1]}, "guided_choice", "list of strings"),
    ({"guided_choice": []}, "guided_choice", "1 to"),
    ({"guided_choice": ["\ud800"]}, "guided_choice", "surrogate"),
    ({"guided_json": {}, "guided_whitespace_pattern": 1}, "guided_whitespace_pattern", "string"),
    ({"grammar": ["a"]}, "grammar", "must be a string"),
    ({"grammar": "a" * 2_000_000}, "grammar", "longer than"),
    ({"json_schema": {"enum": ["a" * 2_000_000]}}, "json_schema", "longer than"),
    ({"json_schema": {"minimum": float("nan")}}, "json_schema", "number"),
    ({"json_schema": False}, "json_schema", "nothing satisfies"),
    ({"json_schema": DEEP}, "json_schema", "levels deep"),
    (
        {"json_schema": {}, "response_format": {"type": "json_object"}},
        "json_schema",
        "can't be used together",
    ),
]


@pytest.mark.parametrize(("fields", "param", "says"), BAD, ids=[f"{i}" for i in range(len(BAD))])
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(BadRequest) as raised:
        from_request(fields)
    assert raised.value.param == param
    assert says in raised.value.message
