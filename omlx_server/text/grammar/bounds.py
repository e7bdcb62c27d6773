"""Bounds on the work of one grammar.

llguidance's own limits cover neither the size of a row of its parser nor the intersection of
patterns. A grammar runs in the server only if both are surely small, else in its own process.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLParserLimits

from omlx_server.text.grammar.json_schema.prepare import values_within

# The most symbols of a grammar that runs in the server: fewer where many alternatives can be open
# at once, since then a row of the parser has many items.
MOST_SYMBOLS = 10_000
MOST_SYMBOLS_AMBIGUOUS = 500
# An answer's budget of processor time: SECONDS, and SECONDS_PER_TOKEN more for each token.
SECONDS = 0.1
SECONDS_PER_TOKEN = 0.002
_FEW_ALTERNATIVES = 50
_APPLIED_IN_PLACE = ("allOf", "anyOf", "oneOf", "$ref")
# Where one of these stands beside a key that applies another schema, both are intersected.
_INTERSECTED = (
    *("properties", "patternProperties", "additionalProperties"),
    *("items", "prefixItems", "pattern", "format", "multipleOf"),
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
    values = [value for schema in schemas for value in values_within(schema)]
    objects = [value for value in values if isinstance(value, dict)]
    has_intersection = any(map(_has_intersection, objects))
    if has_intersection and sum(map(_count_patterns, objects)) > 1:
        return 0
    few_alternatives = sum(map(_count_alternatives, objects)) <= _FEW_ALTERNATIVES
    is_unambiguous = few_alternatives and not has_intersection
    return MOST_SYMBOLS if is_unambiguous else MOST_SYMBOLS_AMBIGUOUS


def _has_intersection(schema: Mapping[str, Any]) -> bool:
    applied = [key for key in _APPLIED_IN_PLACE if key in schema]
    applies_several = len(applied) > 1 or len(_list_at(schema, "allOf")) > 1
    has_keys_beside = bool(applied) and any(key in schema for key in _INTERSECTED)
    return applies_several or has_keys_beside or "patternProperties" in schema


def _count_patterns(schema: Mapping[str, Any]) -> int:
    of_keys = schema.get("patternProperties")
    count = sum(isinstance(schema.get(key), str) for key in ("pattern", "format"))
    count += isinstance(schema.get("multipleOf"), int | float)
    return count + (len(of_keys) if isinstance(of_keys, dict) else 0)


def _count_alternatives(schema: Mapping[str, Any]) -> int:
    """Count alternatives that can be open at once: not null, nor those that all differ in type."""
    count = 0
    for alternatives in (_list_at(schema, "anyOf"), _list_at(schema, "oneOf")):
        types = [one.get("type") if isinstance(one, dict) else None for one in alternatives]
        names = [name if isinstance(name, str) else "" for name in types if name != "null"]
        all_differ = len(set(names)) == len(names) and "" not in names
        count += 0 if len(names) < 2 or all_differ else len(names)
    return count


def _list_at(schema: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else ()
