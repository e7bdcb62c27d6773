"""What the engine can't enforce is refused with its place; what only annotates is no obstacle."""

import time
from typing import Any

import pytest

from omlx_server.errors import BadRequest
from omlx_server.text.grammar.json_schema.prepare import is_usable, prepare_schema


def wrap(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "array", "items": schema}}}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (
            {"uniqueItems": True},
            "'uniqueItems' is not supported at /properties/a/items/uniqueItems",
        ),
        ({"not": {}}, "'not' is not supported at /properties/a/items/not"),
        ({"anyOf": [{}, {"if": {}}]}, "at /properties/a/items/anyOf/1/if"),
        ({"$defs": {"x": {"contains": 1}}}, "at /properties/a/items/$defs/x/contains"),
        ({"prefixItems": [3]}, "object or a boolean at /properties/a/items/prefixItems/0"),
        ({"additionalProperties": "no"}, "at /properties/a/items/additionalProperties"),
        ({"properties": []}, "'properties' has a value of the wrong type"),
        ({"enum": "abc"}, "'enum' has a value of the wrong type"),
        ({"pattern": 3}, "'pattern' has a value of the wrong type"),
        ({"required": True}, "'required' has a value of the wrong type"),
        ("string", "object or a boolean at /properties/a/items"),
        ({"type": "sting"}, "'type' has a value of the wrong type at /properties/a/items/type"),
        ({"type": [{}]}, "'type' has a value of the wrong type"),
        ({"minLength": "3"}, "'minLength' has a value of the wrong type"),
        ({"maxItems": -1}, "'maxItems' has a value of the wrong type"),
        (
            {"const": 2**53 + 1},
            "with an integer beyond 2^53 is not supported at /properties/a/items",
        ),
        ({"enum": [1, {"a": [-(2**64) - 1]}]}, "'enum' with an integer beyond 2^53"),
        ({"maximum": "9"}, "'maximum' has a value of the wrong type"),
        ({"pattern": "^(?!no)"}, "looks around or back is not supported at /properties/a/items/"),
        ({"patternProperties": {"(a)\\1": {}}}, "at /properties/a/items/patternProperties"),
        ({"propertyNames": {"maxLength": 3}}, "not supported at /properties/a/items/propertyN"),
        ({"propertyNames": {"pattern": "a\\b"}}, "not supported at /properties/a/items/prop"),
        ({"properties": {}, "propertyNames": {"pattern": "a"}}, "/items/propertyNames"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(schema: Any, says: str) -> None:
    with pytest.raises(BadRequest) as raised:
        prepare_schema(wrap(schema), "schema")
    assert says in raised.value.message
    assert raised.value.param == "schema"


@pytest.mark.parametrize(
    "schema",
    [
        {"title": "t", "description": "d", "default": {"not": 1}, "examples": [1]},
        {"deprecated": True, "example": 7, "discriminator": {"propertyName": "k"}},
        {"properties": {"not": {}, "uniqueItems": {"type": "string"}, "format": {}}},
        {"enum": [{"not": 1, "x-guidance": 2}], "const": {"if": 3}},
    ],
)
def test_annotations_names_and_values_are_no_keywords(schema: Any) -> None:
    assert prepare_schema(schema, "schema") == schema


def test_what_says_nothing_is_left_out() -> None:
    idle = {"uniqueItems": False, "unevaluatedProperties": True, "format": "int32"}
    assert prepare_schema(wrap({"type": "integer", **idle}), "schema") == wrap({"type": "integer"})


@pytest.mark.parametrize("name", ["base64", "jwt", "e164", "cidrv4", "uri-reference", "int64"])
def test_a_format_that_the_engine_does_not_know_only_annotates(name: str) -> None:
    assert prepare_schema(wrap({"type": "string", "format": name}), "s") == wrap({"type": "string"})
    known = wrap({"type": "string", "format": "date-time"})
    assert prepare_schema(known, "s") == known


@pytest.mark.parametrize("names", [{"type": "string"}, True, {}, {"format": "x", "title": "t"}])
def test_names_that_are_any_strings_say_nothing(names: Any) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert prepare_schema({**schema, "propertyNames": names}, "schema") == schema


def test_names_become_properties_or_a_pattern() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    closed = {"type": "object", "additionalProperties": False}
    told: dict[str, Any] = {"type": "string", "enum": ["a", "b"]}
    both = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    assert prepare_schema({**schema, "propertyNames": told}, "schema") == {**closed, **both}
    named = {"propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"const": "a"}}}
    own = {"properties": {"a": True}, "$defs": {"n": {"const": "a"}}}
    assert prepare_schema({"type": "object", **named}, "schema") == {**closed, **own}
    told = {"pattern": "^[a-z]+$"}
    pattern = {"patternProperties": {"^[a-z]+$": {"type": "integer"}}}
    assert prepare_schema({**schema, "propertyNames": told}, "schema") == {**closed, **pattern}


def test_integers_that_are_kept_are_enforced() -> None:
    kept = {"enum": [2**53, -(2**53), 1.5, 1e300, True, None, "9007199254740993"]}
    assert prepare_schema(kept, "schema") == kept
    assert prepare_schema({"const": 2**53 + 1}, "schema", lenient=True) == {}


def test_a_count_may_be_written_with_a_point() -> None:
    assert prepare_schema({"maxLength": 3.0}, "schema") == {"maxLength": 3}


def test_a_lenient_schema_loses_what_cannot_be_kept() -> None:
    loose = wrap({"type": "array", "uniqueItems": True, "not": {}})
    assert prepare_schema(loose, "schema", lenient=True) == wrap({"type": "array"})


def test_what_a_lenient_schema_loses_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    loose = {"not": {}, "properties": {"a": {"pattern": "(?=a)", "type": "string"}}}
    for _ in range(2):
        made = prepare_schema(loose, "tools.7.function.parameters", lenient=True)
        assert made == {"properties": {"a": {"type": "string"}}}
    assert caplog.messages == [
        "tools.7.function.parameters: left out what can't be enforced: not, pattern"
    ]


def test_patterns_of_names_that_could_meet_are_loosened_where_nothing_is_promised() -> None:
    def loose(**fields: Any) -> Any:
        return prepare_schema(fields, "schema", lenient=True)

    integer = {"type": "integer"}
    alone: dict[str, Any] = {"patternProperties": {"^a": integer}}
    assert loose(**alone) == alone
    meets = {"properties": {"abc": {}}, **alone}
    assert loose(**meets) == {**meets, "patternProperties": {"(?:^a)": True}}
    two = {"^a": integer, "b$": {}}
    assert loose(patternProperties=two) == {"patternProperties": {"(?:^a)|(?:b$)": True}}
    around = {"^a": integer, "^(?!b)": {}}
    assert loose(patternProperties=around) == {**alone, "additionalProperties": True}


@pytest.mark.parametrize(
    ("pattern", "usable"),
    [
        ("^[a-z]+$", True),
        (r"\(?=a", True),
        (r"[(?=\]\b]", True),
        ("(?:a|b)(?i)c", True),
        (r"(?<name>a)", True),
        (r"\\b", True),
        (r"\x41\u0041\d\w", True),
        ("(?=a)", False),
        ("(?!a)", False),
        ("(?<=a)b", False),
        ("(?<!a)b", False),
        (r"(a)\1", False),
        (r"\bfoo", False),
        (r"[a]\B", False),
    ],
)
def test_patterns_that_look_around_are_told_from_others(pattern: str, usable: bool) -> None:
    assert is_usable(pattern) is usable


def test_a_long_pattern_is_looked_through_once() -> None:
    started = time.process_time()
    assert is_usable("[" * (1 << 20))
    assert time.process_time() - started < 5


def test_the_clients_schema_is_left_as_it_was() -> None:
    schema = wrap({"uniqueItems": False})
    prepare_schema(schema, "schema")
    assert schema == wrap({"uniqueItems": False})
