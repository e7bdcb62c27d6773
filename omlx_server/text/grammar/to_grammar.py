"""Turns a schema, pattern, choices or client's grammar into the text that is compiled, the key
of the cache."""

import json
import re
from collections.abc import Sequence
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
    """A grammar to compile. Raises BadRequest for more than MAX_CHARS characters.

    text     the grammar in the engine's form; of kind GRAMMAR, a client's Lark or GBNF
    param    the field of the request that errors name
    trusted  no client wrote any of it, so it needs no trial
    symbols  a grammar with more symbols than these runs in a process of its own
    places   of kind TOOLS, the field that each rule `args_0`, `args_1`, … is made of
    """

    kind: GrammarKind
    text: str
    param: str = field(compare=False)
    trusted: bool = field(default=False, compare=False)
    symbols: int = field(default=0, compare=False)
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
