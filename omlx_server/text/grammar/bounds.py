"""Bounds on the work of one grammar.

llguidance's own limits cover neither the size of a row of its parser nor the intersection of
patterns. A grammar runs in the server only if both are surely small, else in its own process.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llguidance import LLParserLimits

# The most symbols of a grammar that runs in the server. Where few alternatives can be open at once
# a row of the parser has few items, so there may be more symbols.
MOST_SYMBOLS = 10_000
MOST_SYMBOLS_AMBIGUOUS = 500
# An answer's budget of processor time: so much, and so much more for each token.
SECONDS = 0.1
SECONDS_PER_TOKEN = 0.002
_FEW_BRANCHES = 50
_APPLIED_IN_PLACE = ("allOf", "anyOf", "oneOf", "$ref")
# Beside a key that applies another schema in the same place they are intersected with it.
_INTERSECTED = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "items",
    "prefixItems",
    "pattern",
    "format",
    "multipleOf",
)


def engine_limits(symbols: int | None = None) -> LLParserLimits:
    """`symbols`: the most of a grammar; None for the engine's own limit."""
    return LLParserLimits(
        step_lexer_fuel=100_000,
        step_max_items=25_000,
        max_lexer_states=25_000,
        verbose_errors=False,
        max_grammar_size=symbols,
    )


def symbols_allowed(schemas: Sequence[Any]) -> int:
    """Return the most symbols of a grammar of these schemas; 0 for one that must run in its own
    process."""
    objects = [inner for schema in schemas for inner in _objects(schema)]
    merged = any(_merges(schema) for schema in objects)
    if merged and sum(map(_patterns, objects)) > 1:
        return 0
    few = sum(map(_branches, objects)) <= _FEW_BRANCHES
    return MOST_SYMBOLS if few and not merged else MOST_SYMBOLS_AMBIGUOUS


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _merges(schema: Mapping[str, Any]) -> bool:
    applied = [key for key in _APPLIED_IN_PLACE if key in schema]
    several = len(applied) > 1 or len(_listed(schema, "allOf")) > 1
    beside = bool(applied) and any(key in schema for key in _INTERSECTED)
    return several or beside or "patternProperties" in schema


def _patterns(schema: Mapping[str, Any]) -> int:
    keyed = schema.get("patternProperties")
    count = sum(isinstance(schema.get(key), str) for key in ("pattern", "format"))
    count += isinstance(schema.get("multipleOf"), int | float)
    return count + (len(keyed) if isinstance(keyed, dict) else 0)


def _branches(schema: Mapping[str, Any]) -> int:
    """Count alternatives that can be open at once. Null, and those that all differ in type,
    don't count."""
    return sum(_alike(_listed(schema, key)) for key in ("anyOf", "oneOf"))


def _alike(branches: Sequence[Any]) -> int:
    kinds = [branch.get("type") if isinstance(branch, dict) else None for branch in branches]
    kinds = [kind if isinstance(kind, str) else "" for kind in kinds if kind != "null"]
    differ = len(set(kinds)) == len(kinds) and "" not in kinds
    return 0 if len(kinds) < 2 or differ else len(kinds)


def _listed(schema: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else ()
