"""What a schema does not list an answer does not have; and it satisfies the schema as it was."""

import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from omlx_server.errors import BadRequest
from omlx_server.text.grammar import to_grammar
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.json_schema.closing import close_objects
from omlx_server.text.grammar.tools import Function, forced_calls
from tests.text.grammar.walks import Words, accepts, validate, walk

A: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B: Any = {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}
C: Any = {"properties": {"c": {"type": "null"}}}
DEFS: Any = {"$defs": {"A": A, "B": B}}
REF_A: Any = {"$ref": "#/$defs/A"}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str = Field(max_length=9)
    number: int | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[Colour] = []


class Person(BaseModel):
    """A nested model, an optional one, lists, an enumeration, a union by a discriminator."""

    name: str = Field(max_length=9)
    age: int | None
    colour: Colour
    home: Address
    other_homes: list[Address] = []
    work: Address | None = None
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


SCHEMAS: dict[str, Any] = {
    "one": A,
    "empty": {"type": "object", "properties": {}},
    "nested": {"properties": {"x": A, "y": {"type": "array", "items": B}}, "required": ["x", "y"]},
    "pattern": {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "integer"}}},
    "all of": {"allOf": [A, B, C]},
    "all of references": {**DEFS, "allOf": [REF_A, {"$ref": "#/$defs/B"}]},
    "base and own": {**DEFS, "allOf": [REF_A], **C, "required": ["c"]},
    "reference and own": {**DEFS, **REF_A, **C, "required": ["c"]},
    "both ways": {**DEFS, "properties": {"x": REF_A, "y": {"allOf": [REF_A, B]}}},
    "any of": {"anyOf": [A, B, {"type": "string", "maxLength": 3}]},
    "any of and own": {**C, "required": ["c"], "anyOf": [A, B]},
    "any of and what must be": {"anyOf": [A, {**A, **B, "required": []}], "required": ["a"]},
    "one of": {**DEFS, "oneOf": [REF_A, {"$ref": "#/$defs/B"}, {"type": "null"}]},
    "what must be is not listed": {**A, "required": ["a", "d"]},
    "recursive": {
        "$defs": {"n": {"allOf": [A, {"properties": {"next": {"$ref": "#/$defs/n"}}}]}},
        "$ref": "#/$defs/n",
    },
    "pydantic": Person.model_json_schema(),
}


def listed(schema: Any) -> set[str]:
    """All properties that are listed anywhere, by looking at the keys alone."""
    if isinstance(schema, list):
        return set().union(*map(listed, schema))
    if not isinstance(schema, dict):
        return set()
    own = schema.get("properties", {})
    more = [name for name in schema.get("required", []) if isinstance(name, str)]
    return set().union(own, more, *map(listed, schema.values()))


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SCHEMAS)
def test_an_answer_has_nothing_that_is_not_listed(
    tiny: Grammars, tiny_words: Words, name: str, seed: int
) -> None:
    schema = SCHEMAS[name]
    constraint = tiny.compile(to_grammar.json_schema(schema, "schema"))
    value = json.loads(walk(constraint, tiny_words, seed, free=40, most=3000))
    validate(schema, value)
    if name not in ("pattern", "what must be is not listed"):
        assert set(keys(value)) <= listed(schema)
    if name == "pattern":
        assert all(re.fullmatch("x[0-9]", key) for key in value)


@pytest.mark.parametrize(
    ("schema", "text", "fits"),
    [
        (A, '{"a": 1, "b": true}', False),
        ({**A, "additionalProperties": True}, '{"a": 1, "b": true}', True),
        ({**A, "additionalProperties": {"type": "null"}}, '{"a": 1, "b": null}', True),
        ({**A, "additionalProperties": {"type": "null"}}, '{"a": 1, "b": true}', False),
        ({"type": "object"}, '{"any": {"thing": [1]}}', True),
        ({"properties": {"x": {"type": "object"}}}, '{"x": {"any": 1}}', True),
        (SCHEMAS["all of"], '{"a": 1, "b": true, "c": null}', True),
        (SCHEMAS["all of"], '{"a": 1, "b": true, "z": 1}', False),
        (SCHEMAS["all of references"], '{"a": 1, "b": true}', True),
        (SCHEMAS["all of references"], '{"a": 1, "b": true, "z": 1}', False),
        (SCHEMAS["both ways"], '{"x": {"a": 1, "b": true}}', False),
        (SCHEMAS["both ways"], '{"x": {"a": 1}, "y": {"a": 1, "b": true}}', True),
        (SCHEMAS["any of and own"], '{"c": null, "a": 1}', True),
        (SCHEMAS["any of and own"], '{"c": null, "a": 1, "b": true}', False),
        ({"allOf": [A, {**B, "additionalProperties": True}]}, '{"a": 1, "b": true, "z": 1}', True),
        ({"type": "object", "enum": [{"q": 1}], "properties": {}}, '{"q": 1}', True),
        ({**A, "minProperties": 2}, '{"a": 1, "z": 1}', True),
    ],
)  # fmt: skip
def test_only_what_says_so_is_open(
    tiny: Grammars, tiny_words: Words, schema: Any, text: str, fits: bool
) -> None:
    constraint = tiny.compile(to_grammar.json_schema(schema, "schema"))
    assert accepts(constraint, tiny_words, text) is fits


def test_one_of_schemas_that_an_answer_could_satisfy_both_is_as_before(tiny: Grammars) -> None:
    """Closed they exclude each other, but what is asked for is that one of these is satisfied."""
    both = {"oneOf": [A, {"type": "object", "properties": {"b": {}}}]}
    with pytest.raises(BadRequest, match="oneOf"):
        tiny.compile(to_grammar.json_schema(both, "schema"))


@pytest.mark.parametrize("strict", [False, True])
def test_arguments_of_a_forced_call_have_nothing_else(
    tiny: Grammars, tiny_words: Words, strict: bool
) -> None:
    for parameters in (A, {"type": "object", "properties": {}}):
        function = Function("f", parameters, strict=strict)
        grammar = forced_calls([function], lambda _: None, many=False)
        text = walk(tiny.compile(grammar), tiny_words, 3, most=2000)
        call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
        assert set(call["arguments"]) == set(parameters["properties"])


def test_a_chain_of_references_ends_in_time() -> None:
    links = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, A]} for i in range(10_000)}
    with pytest.raises(BadRequest, match="too many references"):
        close_objects({"$ref": "#/$defs/d0", "$defs": {**links, "d10000": B}}, "schema")


NAMES = st.sampled_from(["a", "b", "c", "d"])
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [{"type": "boolean"}, {"type": "null"}, {"enum": ["x", "y"]}, {"type": "integer", "maximum": 9}]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def made(properties: dict[str, Any], optional: set[str]) -> Any:
        required = [name for name in properties if name not in optional]
        return {"type": "object", "properties": properties, "required": required}

    return st.builds(made, st.dictionaries(NAMES, inner, max_size=3), st.sets(NAMES))


def joined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects put together in each way, of parts that others may refer to."""
    parts = st.one_of(objects(inner), st.sampled_from([REF_A, {"$ref": "#/$defs/B"}]))
    several = st.lists(parts, min_size=1, max_size=3)
    return st.one_of(
        objects(inner),
        st.builds(lambda found: {"allOf": found}, several),
        st.builds(lambda found: {"anyOf": found}, several),
        st.builds(lambda own, found: {**own, "anyOf": found}, objects(inner), several),
        st.builds(lambda own, found: {**own, "allOf": found}, objects(inner), several),
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
    )


@settings(
    max_examples=120,
    derandomize=True,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
    ],
)
@given(schema=st.recursive(LEAVES, joined, max_leaves=8), seed=st.integers(0, 99))
def test_whatever_is_put_together(
    tiny: Grammars, tiny_words: Words, schema: Any, seed: int
) -> None:
    """Also: what could be satisfied can be satisfied closed."""
    whole = {**schema, **DEFS}
    try:
        constraint = tiny.compile(to_grammar.json_schema(whole, "schema"))
    except BadRequest as error:
        assume("nothing satisfies it" in error.message or "Unsatisfiable" in error.message)
        with pytest.raises(BadRequest):
            opened = to_grammar.schema_text(whole, "schema")
            tiny.compile(
                to_grammar.GrammarSpec(
                    to_grammar.GrammarKind.JSON_SCHEMA, opened, "schema", symbols=10_000
                )
            )
        return
    value = json.loads(walk(constraint, tiny_words, seed, free=20, most=2000))
    validate(whole, value)
    assert set(keys(value)) <= listed(whole)
