"""What the engine can't enforce is refused with its place; what only annotates is no obstacle."""

from typing import Any

import pytest

from omlx_server.errors import BadRequest
from omlx_server.text.grammar.json_schema.prepare import prepared


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
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(schema: Any, says: str) -> None:
    with pytest.raises(BadRequest) as raised:
        prepared(wrap(schema), "schema")
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
    assert prepared(schema, "schema") == schema


def test_what_says_nothing_is_left_out() -> None:
    idle = {"uniqueItems": False, "unevaluatedProperties": True, "format": "int32"}
    assert prepared(wrap({"type": "integer", **idle}), "schema") == wrap({"type": "integer"})


def test_a_lenient_schema_loses_what_cannot_be_kept() -> None:
    loose = wrap({"type": "array", "uniqueItems": True, "not": {}})
    assert prepared(loose, "schema", lenient=True) == wrap({"type": "array"})


def test_the_clients_schema_is_left_as_it_was() -> None:
    schema = wrap({"uniqueItems": False})
    prepared(schema, "schema")
    assert schema == wrap({"uniqueItems": False})
