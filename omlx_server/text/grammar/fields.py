"""Reads an answer's grammar from the fields of OpenAI, vLLM and llama.cpp."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from omlx_server.errors import BadRequest
from omlx_server.text.grammar import to_grammar
from omlx_server.text.grammar.to_grammar import GrammarSpec

Fields = Mapping[str, Any]

FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "json_schema",
    "grammar",
)
_SOURCES = ("json", "regex", "choice", "grammar", "json_object")
_OPTIONS = ("whitespace_pattern", "disable_any_whitespace")
# These choose among vLLM's engines; here there is only one.
_IGNORED = ("disable_fallback", "backend", "_backend", "_backend_was_auto")


def from_request(fields: Fields) -> GrammarSpec | None:
    """Return the grammar, None for a free form. Raises BadRequest that names the field."""
    specs = [spec for name in FIELDS if (spec := _from_field(fields, name)) is not None]
    if len(specs) > 1:
        names = " and ".join(spec.param for spec in specs[:2])
        raise BadRequest(f"{names} can't be used together", param=specs[1].param)
    return specs[0] if specs else None


def _from_field(fields: Fields, name: str) -> GrammarSpec | None:
    value = fields.get(name)
    if value is None:
        return None
    if name == "response_format":
        return response_format(value)
    if name == "structured_outputs":
        return structured_outputs(value)
    if name.startswith("guided_"):
        whitespace = _whitespace_pattern(fields, "guided_whitespace_pattern", "")
        return _MAKE_SPEC[name.removeprefix("guided_")](value, name, whitespace)
    return _MAKE_SPEC["json" if name == "json_schema" else name](value, name, None)


def response_format(value: object) -> GrammarSpec | None:
    """Return the grammar of OpenAI's or llama.cpp's `response_format`; None for plain text.
    Raises BadRequest."""
    param = "response_format"
    options = _as_object(value, param)
    kind = options.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema_of(options, param)
    if kind == "json_schema":
        return _named_schema(options, param)
    raise BadRequest(
        f"{param}.type must be 'text', 'json_object' or 'json_schema'", param=f"{param}.type"
    )


def _named_schema(value: Fields, param: str) -> GrammarSpec:
    if "schema" in value and "json_schema" not in value:  # as llama.cpp takes it too
        return to_grammar.json_schema(value["schema"], f"{param}.schema")
    param = f"{param}.json_schema"
    return _schema_of(_as_object(value.get("json_schema"), param), param)


def _schema_of(value: Fields, param: str) -> GrammarSpec:
    if (schema := value.get("schema")) is None:
        return to_grammar.json_object(param)
    return to_grammar.json_schema(schema, f"{param}.schema")


def structured_outputs(value: object) -> GrammarSpec | None:
    param = "structured_outputs"
    given = _as_object(value, param)
    options = {name: option for name, option in given.items() if option is not None}
    for name in options:
        if name not in (*_SOURCES, *_OPTIONS, *_IGNORED):
            raise BadRequest(f"{param}.{name[:100]} is not supported", param=param)
    sources = [name for name in _SOURCES if name in options]
    if len(sources) != 1:
        raise BadRequest(f"{param} must have exactly one of {', '.join(_SOURCES)}", param=param)
    [name] = sources
    whitespace = _whitespace_pattern(options, "whitespace_pattern", param)
    return _MAKE_SPEC[name](options[name], f"{param}.{name}", whitespace)


def _whitespace_pattern(fields: Fields, name: str, parent: str) -> str | None:
    pattern = fields.get(name)
    if pattern is None:
        return "" if fields.get("disable_any_whitespace") is True else None
    return _as_text(pattern, f"{parent}.{name}".lstrip("."))


def _from_json(value: object, param: str, whitespace: str | None) -> GrammarSpec:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{param} is not JSON: {error}", param=param) from error
    return to_grammar.json_schema(value, param, whitespace)


def _from_json_object(value: object, param: str, whitespace: str | None) -> GrammarSpec | None:
    if not isinstance(value, bool):
        raise BadRequest(f"{param} must be true or false", param=param)
    return to_grammar.json_object(param, whitespace) if value else None


def _from_choice(value: object, param: str, _: str | None) -> GrammarSpec:
    if not isinstance(value, list) or not all(isinstance(option, str) for option in value):
        raise BadRequest(f"{param} must be a list of strings", param=param)
    return to_grammar.choice(value, param)


def _from_grammar(value: object, param: str, _: str | None) -> GrammarSpec | None:
    if (text := _as_text(value, param)).strip():
        return to_grammar.grammar(text, param)
    if param == "grammar":  # llama.cpp's clients send "" for no grammar
        return None
    raise BadRequest(f"{param} is empty", param=param)


_MAKE_SPEC: Mapping[str, Callable[[object, str, str | None], GrammarSpec | None]] = {
    "json": _from_json,
    "json_object": _from_json_object,
    "regex": lambda value, param, _: to_grammar.regex(_as_text(value, param), param),
    "choice": _from_choice,
    "grammar": _from_grammar,
}


def _as_object(value: object, param: str) -> Fields:
    if not isinstance(value, dict):
        raise BadRequest(f"{param} must be an object", param=param)
    return value


def _as_text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{param} must be a string", param=param)
    return value
