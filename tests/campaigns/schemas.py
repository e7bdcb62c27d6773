"""Random JSON schemas, eight requests at once, a hot model: every finished answer must be valid.

Of the keywords that are enforced, each is drawn now and then. Hypothesis draws; what fails is told
with the schema and the answer, so that it can be asked again.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from tests.api.harness import ServerProcess, serving, text_of

AT_ONCE = 8
_VALIDATOR = Draft202012Validator
_FORMATS_OF = _VALIDATOR.FORMAT_CHECKER
_NAMES = st.sampled_from(["a", "name", "größe", "名", "x y", 'quo"te', "$id_", "7"])
_WORDS = st.sampled_from(["red", "grün", "蓝", "😀", 'a "b"', "", "c\\d", "e\nf"])
_SOME_WORDS = st.lists(_WORDS, min_size=1, max_size=4, unique=True)
_PATTERNS = st.sampled_from(["^[a-z]{1,4}$", "^\\d{2}-\\d{2}$", "^(ab|c)+d?$", "x[0-9]"])
_FORMATS = st.sampled_from(["date", "time", "date-time", "uuid", "ipv4", "email"])


@dataclass(slots=True)
class Outcome:
    finished: int = 0
    cut: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        head = (
            f"{self.finished} finished and valid, {self.cut} cut by max_tokens, "
            f"{len(self.refused)} refused, {len(self.wrong)} wrong"
        )
        return "\n".join([head, *self.refused, *self.wrong])


def campaign(
    model: str,
    server_settings: list[str],
    directory: Path,
    count: int,
    *,
    max_tokens: int = 200,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """`count` schemas, one answer each, at temperature 2."""
    outcome = Outcome()
    with serving(model, directory, *server_settings) as server, ThreadPoolExecutor(AT_ONCE) as pool:

        def ask(number: int, schema: Any) -> None:
            _judge(server, number, schema, max_tokens, outcome)
            say(f"{number + 1}: {json.dumps(schema, ensure_ascii=False)[:100]}")

        for future in [pool.submit(ask, i, s) for i, s in enumerate(draw(count))]:
            future.result()
    return outcome


def _judge(
    server: ServerProcess, number: int, schema: Any, max_tokens: int, outcome: Outcome
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = server.body("Answer.", response_format=form, max_tokens=max_tokens, seed=number)
    response = server.post(body | {"temperature": 2.0})
    told = json.dumps(schema, ensure_ascii=False)
    if response.status_code != 200:
        outcome.refused.append(f"{told}: {response.text}")
        return
    answer = response.json()
    if answer["choices"][0]["finish_reason"] != "stop":
        outcome.cut += 1
        return
    outcome.finished += 1
    try:
        _VALIDATOR(schema, format_checker=_FORMATS_OF).validate(json.loads(text_of(answer)))
    except (ValueError, ValidationError) as error:
        outcome.wrong.append(f"{told}: {text_of(answer)!r}: {error}")


def draw(count: int) -> list[Any]:
    """The same ones each time."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(schema=schemas())
    def note(schema: Any) -> None:
        found.append(schema)

    while len(found) < count:
        note()
    return found[:count]


def schemas() -> st.SearchStrategy[Any]:
    """Objects, arrays and unions of bounded depth, with definitions now and then."""
    plain = st.recursive(_leaves(), _branches, max_leaves=8)
    return st.one_of(plain, _objects(plain), _with_definition(plain), _lists())


def _leaves() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.sampled_from([{"type": kind} for kind in ("boolean", "null", "integer", "number")]),
        st.builds(_bounded, st.integers(-99, 99), st.integers(0, 500), st.booleans()),
        st.builds(lambda low, room: _drop(type="string", minLength=low, maxLength=low + room),
                  st.integers(0, 4), st.integers(0, 12)),
        st.builds(lambda pattern: {"type": "string", "pattern": pattern}, _PATTERNS),
        st.builds(lambda name: {"type": "string", "format": name}, _FORMATS),
        st.builds(lambda words: {"enum": words}, _SOME_WORDS),
        st.builds(lambda value: {"const": value}, st.one_of(_WORDS, st.integers(-9, 9), st.none())),
        st.just({"type": ["string", "null"], "maxLength": 6}),
    )  # fmt: skip


def _bounded(low: int, room: int, exclusive: bool) -> Any:
    if exclusive:
        return {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + room + 1}
    return {"type": "integer", "minimum": low, "maximum": low + room}


def _branches(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        _objects(inner),
        st.builds(_array, inner, st.integers(0, 2), st.integers(0, 3)),
        st.builds(lambda items: {"anyOf": items}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda items: {
                "type": "array",
                "prefixItems": items,
                "items": False,
                "minItems": len(items),
            },
            st.lists(inner, min_size=1, max_size=3),
        ),
    )


def _array(items: Any, low: int, room: int) -> Any:
    return {"type": "array", "items": items, "minItems": low, "maxItems": low + room}


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def build(properties: dict[str, Any], optional: int, closed: bool) -> Any:
        required = list(properties)[: len(properties) - optional]
        return _drop(
            type="object",
            properties=properties,
            required=required or None,
            additionalProperties=False if closed else None,
        )

    members = st.dictionaries(_NAMES, inner, min_size=1, max_size=4)
    return st.builds(build, members, st.integers(0, 2), st.sampled_from([True, True, False]))


def _with_definition(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object that refers to a definition twice."""
    refer = {"$ref": "#/$defs/part"}
    return st.builds(
        lambda part: {
            "type": "object",
            "properties": {"one": refer, "more": {"type": "array", "items": refer, "maxItems": 2}},
            "required": ["one"],
            "additionalProperties": False,
            "$defs": {"part": part},
        },
        inner,
    )


def _lists() -> st.SearchStrategy[Any]:
    """A list of linked nodes: a definition that refers to itself."""
    node = {
        "type": "object",
        "properties": {
            "value": {"type": "integer", "minimum": 0, "maximum": 9},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return st.just({"$ref": "#/$defs/node", "$defs": {"node": node}})


def _drop(**members: Any) -> dict[str, Any]:
    """Without those that are None."""
    return {name: value for name, value in members.items() if value is not None}
