"""Grammars of tool calls.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Forced calls have this form for all models; others have the model's own markers (`CallSyntax`),
control tokens where the vocabulary has them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from omlx_server.errors import BadRequest
from omlx_server.text.grammar.bounds import symbols_allowed
from omlx_server.text.grammar.json_schema.closing import close_objects
from omlx_server.text.grammar.json_schema.prepare import prepare_schema
from omlx_server.text.grammar.quoted_lark import QuotedLark
from omlx_server.text.grammar.to_grammar import (
    GrammarKind,
    GrammarSpec,
    inline_schema,
    lark_rule_of,
    lark_string,
)

MAX_CALLS = 16
# As models write calls: on one line, with a blank here and there.
_WHITESPACE = "[ ]"


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a call is written in JSON. `head`: what stands before the arguments; `{name}` in it is
    the name as a JSON string."""

    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    before: str = "\n"
    after: str = "\n"
    between: str = "\n"
    head: str = '"name": {name}, "arguments": '


@dataclass(frozen=True, slots=True)
class Function:
    """A tool."""

    name: str
    parameters: Any = None  # its JSON schema as the client sent it
    strict: bool = False  # refuse keywords that can't be enforced, instead of dropping them
    param: str = "tools"  # the field that errors name
    # the grammar of the text that is its only argument, instead of a schema
    input: QuotedLark | None = None


SpecialId = Callable[[str], int | None]
"""Returns the id of the control token with a text, if there is one."""


def forced_calls(
    functions: Sequence[Function],
    special_id: SpecialId,
    *,
    many: bool,
    answer: GrammarSpec | None = None,
) -> GrammarSpec:
    """Return a grammar of one call or, with `many`, up to MAX_CALLS, or of the JSON `answer`.
    Raises BadRequest."""
    calls = _CallRules(functions, CallSyntax(), special_id)
    more = f"({calls.between} call){{0,{MAX_CALLS - 1}}}" if many else ""
    rules = [f"calls: call {more}", f"call: {calls.begin} body", *calls.rules]
    if answer is None:
        return calls_spec(["start: calls", *rules], functions)
    return calls_spec(
        ["start: calls | answer", f"answer: {lark_rule_of(answer)}", *rules], functions, answer
    )


def free_calls(
    functions: Sequence[Function],
    special_id: SpecialId,
    *,
    many: bool,
    syntax: CallSyntax | None = None,
) -> GrammarSpec:
    """Return a grammar of text with calls. Without `many` it ends with the first call. Raises
    BadRequest."""
    calls = _CallRules(functions, syntax or CallSyntax(), special_id)
    rules = [
        "start: call* tail" if many else "start: tail | call",
        "tail: TEXT",
        r"TEXT: /(.|\n)*/",
        *calls.call_behind_text,
        *calls.rules,
    ]
    return calls_spec(rules, functions)


def calls_spec(
    rules: Sequence[str], functions: Sequence[Function], answer: GrammarSpec | None = None
) -> GrammarSpec:
    """Return the grammar of Lark `rules` that may hold the JSON `answer`, too."""
    text = "\n".join(["%llguidance {}", *rules, ""])
    if any(function.input and not function.input.regular for function in functions):
        symbols = 0
    else:
        answers = [] if answer is None else [json.loads(answer.text)]
        symbols = symbols_allowed([*(function.parameters for function in functions), *answers])
    places = tuple(function.param for function in functions)
    return GrammarSpec(
        GrammarKind.TOOLS,
        text,
        "tools",
        trusted=not functions and answer is None,
        symbols=symbols,
        places=places,
    )


class _CallRules:
    """The parts of a call as Lark. `rules` define `body`: a call behind its begin marker."""

    def __init__(
        self, functions: Sequence[Function], syntax: CallSyntax, special_id: SpecialId
    ) -> None:
        if not functions:
            raise BadRequest("there are no tools to choose from", param="tools")
        self._special_id = special_id
        self._syntax = syntax
        self.begin = lark_marker(syntax.begin, special_id)
        self.between = lark_string(syntax.between) if syntax.between else ""
        names = " | ".join(f"body_{i}" for i in range(len(functions)))
        self.rules = [f"body: {names}"]
        for i, function in enumerate(functions):
            self.rules += [self._body_rule(i, function), f"args_{i}: {args_rule(function)}"]

    def _body_rule(self, i: int, function: Function) -> str:
        head = self._syntax.head.replace("{name}", lark_string(function.name))
        opening = f"{self._syntax.before}{{{head}"
        closing = lark_string("}" + self._syntax.after)
        end = lark_marker(self._syntax.end, self._special_id) if self._syntax.end else ""
        return f"body_{i}: {lark_string(opening)} args_{i} {closing} {end}"

    @property
    def call_behind_text(self) -> list[str]:
        if self._special_id(self._syntax.begin) is not None:
            return [f"call: TEXT {self.begin} body"]
        # Lazy: the first begin marker ends the text.
        return [f"head[lazy]: TEXT {self.begin}", "call: head body"]


def lark_marker(text: str, special_id: SpecialId) -> str:
    token = special_id(text)
    return lark_string(text) if token is None else f"<[{token}]>"


def args_rule(function: Function) -> str:
    """Return the Lark rule of a call's arguments. Raises BadRequest for a schema of anything but
    an object."""
    if function.input is not None:
        opening = r'"{\"input\":" " "? "\""'
        return f'{opening} %lark {{\n{function.input.text}\n}} "\\"}}"'
    if function.parameters is None:
        return lark_string("{}")
    lenient = not function.strict
    schema = prepare_schema(function.parameters, function.param, lenient=lenient)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise BadRequest(f"{function.param} must describe an object", param=function.param)
    schema = {"type": "object", **close_objects(schema, function.param)}
    inline = inline_schema(schema, function.param, whitespace=_WHITESPACE, lenient=lenient)
    return f"%json {inline}"
