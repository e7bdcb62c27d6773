"""Numbers are strict and bounded in every field of every body, whatever fields there come to be."""

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator
from starlette.requests import Request
from starlette.types import Message

from omlx_server.api.admin.settings import SettingsPatch
from omlx_server.api.http import json_body
from omlx_server.api.http.bodies import BODY, Bodies
from omlx_server.api.http.json_body import StrictModel
from omlx_server.errors import BadRequest
from tests.api.routes import bodies, good, numbers

NO_NUMBERS = (
    *("NaN", "Infinity", "-Infinity", "nan", "1e400", "-1e400", "9" * 5000, "0x10", "+1", "01"),
    *('"1"', '"NaN"', '"1e3"', '""', "true", "false", "[]", "{}", "[1]", '{"a": 1}'),
)
NOT_WHOLE = ("1.5", "1.0", "1e0", "1e300", str(10**30), str(-(10**30)))
# Bounds that a JSON schema can't tell; `WRONG_VALUES` of test_hostile.py has them.
BOUNDED_BY_HAND = ("logit_bias",)


# A place of a number in a body: the kind, a document with the word HERE in it, the whole schema and
# the number's own.
Place = tuple[type[StrictModel], str, dict[str, Any], dict[str, Any]]


def places() -> Iterator[Place]:
    for kind in bodies():
        schema = kind.model_json_schema()
        for text, leaf in numbers(schema, schema.get("$defs", {})):
            yield kind, text, schema, leaf


def named(place: Place) -> str:
    return f"{place[0].__name__}-{place[1].partition('HERE')[0]}"


every_place = pytest.mark.parametrize("place", list(places()), ids=named)


def read(kind: type[StrictModel], text: str) -> StrictModel:
    """As a route does."""

    async def receive() -> Message:
        return {"type": "http.request", "body": text.encode(), "more_body": False}

    scope = {"type": "http", "method": "POST", "headers": [], BODY: lambda: Bodies().begin(b"")}
    request = Request(scope, receive)
    return asyncio.run(json_body.read(request, kind, 2**20))


def means_something_else(text: str, schema: dict[str, Any], leaf: dict[str, Any]) -> bool:
    """Whether a document fits a schema in which this number can't be."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    own = dict(leaf)
    leaf.clear()
    leaf["not"] = {}
    try:
        return bool(Draft202012Validator(schema).is_valid(document))
    finally:
        leaf.clear()
        leaf.update(own)


def test_there_are_bodies_with_numbers() -> None:
    assert {kind.__name__ for kind in bodies()} >= {"ChatRequest", "CompletionRequest"}
    assert len(list(places())) > 30


@every_place
def test_what_is_no_number_is_refused(place: Place) -> None:
    kind, text, schema, leaf = place
    read(kind, text.replace("HERE", str(good(leaf))))  # what is refused below is the number
    for value in NO_NUMBERS + (NOT_WHOLE if leaf["type"] == "integer" else ()):
        whole = text.replace("HERE", value)
        if not means_something_else(whole, schema, leaf):
            with pytest.raises(BadRequest) as caught:
                read(kind, whole)
            assert len(caught.value.message) < 300


@every_place
def test_a_number_has_bounds(place: Place) -> None:
    kind, text, schema, leaf = place
    if kind is SettingsPatch:  # bounded by the setting of that name
        return
    if any(f'"{name}"' in text.partition("HERE")[0] for name in BOUNDED_BY_HAND):
        return
    assert {"minimum", "exclusiveMinimum"} & set(leaf), "it has no lower bound"
    assert {"maximum", "exclusiveMaximum"} & set(leaf), "it has no upper bound"
    step = 1 if leaf["type"] == "integer" else 0.01
    low = leaf["minimum"] - step if "minimum" in leaf else leaf["exclusiveMinimum"]
    high = leaf["maximum"] + step if "maximum" in leaf else leaf["exclusiveMaximum"]
    for value in (low, high):
        whole = text.replace("HERE", str(value))
        if not means_something_else(whole, schema, leaf):
            with pytest.raises(BadRequest):
                read(kind, whole)
