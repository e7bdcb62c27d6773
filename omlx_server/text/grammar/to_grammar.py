"""Turns a schema, pattern, choices or client's grammar into the text that is compiled, the key
of the cache."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from llguidance import LLMatcher

from omlx_server.errors import BadRequest
from omlx_server.text.grammar.bounds import MOST_SYMBOLS, symbols_allowed
from omlx_server.text.grammar.constraint import short_reason
from omlx_server.text.grammar.json_schema.closing import close_objects
from omlx_server.text.grammar.json_schema.prepare import OPTIONS, prepare_schema

# An error of the engine: the line of the grammar, the reason, and some lines of the grammar.
_ENGINE_ERROR = re.compile(
    r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?(.*?)(?:\n *\d+ \| .*)?", re.DOTALL
)
MAX_CHARS = 1 << 20
MAX_CHOICES = 10_000
# A blank, or a new line with its indentation, once. With any number of blanks allowed, a model
# that has lost its thread writes blanks until its tokens are used up.
WHITESPACE = r"[ ]|\n[ ]{0,40}|\n\t{0,20}"
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


class GrammarKind(StrEnum):
    """The source of a grammar."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar to compile. Raises BadRequest for more than MAX_CHARS characters."""

    kind: GrammarKind
    text: str  # the grammar in the engine's form; of kind GRAMMAR, a client's Lark or GBNF
    param: str = field(compare=False)  # the field of the request that errors name
    # no client wrote any of it, so it needs no trial
    trusted: bool = field(default=False, compare=False)
    # a grammar with more symbols than these runs in a process of its own
    symbols: int = field(default=0, compare=False)
    # of kind TOOLS, the field that each rule `args_0`, `args_1`, … is made of
    places: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if len(self.text) > MAX_CHARS:
            raise BadRequest(
                f"{self.param} is longer than {MAX_CHARS} characters", param=self.param
            )


def refusal(spec: GrammarSpec, reason: str) -> BadRequest:
    """Return the error for a refused grammar; of one that the server wrote, for the field that the
    faulty rule is made of."""
    match = _ENGINE_ERROR.fullmatch(reason) if spec.kind is GrammarKind.TOOLS else None
    if match is None:
        problem, param = reason, spec.param
    else:
        problem, line = match[2], spec.text.split("\n")[int(match[1]) - 1]
        params = {f"args_{i}": place for i, place in enumerate(spec.places)}
        param = params.get(line.partition(":")[0], spec.param)
    problem = short_reason(problem.partition(". Enable '")[0])  # an option that clients don't have
    return BadRequest(f"{param} can't be used: {problem}", param=param)


def json_object(param: str, whitespace: str | None = None) -> GrammarSpec:
    text = schema_text({"type": "object"}, param, whitespace)
    return GrammarSpec(
        GrammarKind.JSON_OBJECT, text, param, trusted=whitespace is None, symbols=MOST_SYMBOLS
    )


def json_schema(schema: object, param: str, whitespace: str | None = None) -> GrammarSpec:
    prepared = close_objects(prepare_schema(schema, param), param)
    text = schema_text(prepared, param, whitespace)
    return GrammarSpec(GrammarKind.JSON_SCHEMA, text, param, symbols=symbols_allowed([prepared]))


def regex(pattern: str, param: str) -> GrammarSpec:
    text = LLMatcher.grammar_from_regex(_check_encodable(pattern, param))
    return GrammarSpec(GrammarKind.REGEX, text, param, symbols=MOST_SYMBOLS)


def choice(options: Sequence[str], param: str) -> GrammarSpec:
    """Return a grammar of exactly one of `options`. Raises BadRequest for none or too many."""
    if not 1 <= len(options) <= MAX_CHOICES:
        raise BadRequest(f"{param} must have 1 to {MAX_CHOICES} choices", param=param)
    literals = " | ".join(lark_string(_check_encodable(option, param)) for option in options)
    # Upper case: one lexeme for all, which stays cheap however many there are.
    text = f"start: CHOICE\nCHOICE: {literals}"
    return GrammarSpec(GrammarKind.CHOICE, text, param, symbols=MOST_SYMBOLS)


def grammar(text: str, param: str) -> GrammarSpec:
    """Return a client's Lark or GBNF, which runs in a process of its own."""
    return GrammarSpec(GrammarKind.GRAMMAR, _check_encodable(text, param), param)


def schema_text(schema: Any, param: str, whitespace: str | None = None) -> str:
    """Return a grammar of one prepared schema. Raises as `inline_schema`."""
    inline = inline_schema(schema, param, whitespace=whitespace)
    return f'{{"grammars":[{{"json_schema":{inline}}}]}}'


def inline_schema(
    schema: Any, param: str, *, whitespace: str | None = None, lenient: bool = False
) -> str:
    """Return a prepared schema as JSON for `%json`. Raises BadRequest for an unsatisfiable one,
    NaN and infinity."""
    if schema is False:
        raise BadRequest(f"{param}: nothing satisfies the schema", param=param)
    options = {
        "whitespace_pattern": WHITESPACE if whitespace is None else whitespace,
        "lenient": lenient,
    }
    try:
        return json.dumps({OPTIONS: options, **({} if schema is True else schema)}, allow_nan=False)
    except ValueError as error:
        raise BadRequest(f"{param} holds a number that JSON has not", param=param) from error


def lark_rule_of(spec: GrammarSpec) -> str:
    """Return the right side of a Lark rule. Raises BadRequest unless the spec describes JSON."""
    if spec.kind not in (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA):
        raise BadRequest(
            f"{spec.param} can't be used together with tools that the model is free to call",
            param=spec.param,
        )
    schema = json.loads(spec.text)["grammars"][0]["json_schema"]
    return f"%json {json.dumps(schema)}"


def lark_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _check_encodable(text: str, param: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{param} holds half of a surrogate pair", param=param) from error
    return text


Fields = Mapping[str, Any]


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
        return json_schema(value["schema"], f"{param}.schema")
    param = f"{param}.json_schema"
    return _schema_of(_as_object(value.get("json_schema"), param), param)


def _schema_of(value: Fields, param: str) -> GrammarSpec:
    if (schema := value.get("schema")) is None:
        return json_object(param)
    return json_schema(schema, f"{param}.schema")


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
    return json_schema(value, param, whitespace)


def _from_json_object(value: object, param: str, whitespace: str | None) -> GrammarSpec | None:
    if not isinstance(value, bool):
        raise BadRequest(f"{param} must be true or false", param=param)
    return json_object(param, whitespace) if value else None


def _from_choice(value: object, param: str, _: str | None) -> GrammarSpec:
    if not isinstance(value, list) or not all(isinstance(option, str) for option in value):
        raise BadRequest(f"{param} must be a list of strings", param=param)
    return choice(value, param)


def _from_grammar(value: object, param: str, _: str | None) -> GrammarSpec | None:
    if (text := _as_text(value, param)).strip():
        return grammar(text, param)
    if param == "grammar":  # llama.cpp's clients send "" for no grammar
        return None
    raise BadRequest(f"{param} is empty", param=param)


_MAKE_SPEC: Mapping[str, Callable[[object, str, str | None], GrammarSpec | None]] = {
    "json": _from_json,
    "json_object": _from_json_object,
    "regex": lambda value, param, _: regex(_as_text(value, param), param),
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
