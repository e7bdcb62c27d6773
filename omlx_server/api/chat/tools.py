"""The tools of a chat request: those that the model sees, and those that it may or must call.

Custom tools are called with a text. A model sees functions with one parameter, `input`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omlx_server.api.chat.request import (
    AllowedChoice,
    ChatCustomTool,
    ChatFunctionTool,
    ChatRequest,
    GrammarFormat,
    NamedCustom,
    NamedFunction,
)
from omlx_server.api.http.exchange import warn_client
from omlx_server.errors import BadRequest
from omlx_server.text.encoding.searching import without_surrogates
from omlx_server.text.grammar.quoted_lark import QuotedLark, quoted_lark
from omlx_server.text.grammar.tools import Function

_INPUT_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_LONGEST_OPENING = 64
# Whole characters of a JSON string: half of a surrogate pair waits for what follows.
_WHOLE_CHARACTERS = re.compile(
    r"""(?:[^"\\]+|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}
    |\\u[0-9a-fA-F]{4}(?=[^\\]|\\[^u]|\\u[0-9a-fA-F]{4}))*""",
    re.VERBOSE,
)
_ANCHORS = re.compile(r"\A\^|(?<!\\)\$\Z")
_SYNTAXES = {"lark": "Lark grammar", "regex": "regular expression"}


def _function_for_prompt(tool: ChatFunctionTool | ChatCustomTool) -> Mapping[str, Any]:
    """Return the function that the model sees."""
    if isinstance(tool, ChatFunctionTool):
        return tool.model_dump(exclude_unset=True)
    custom = tool.custom
    texts = [custom.description] if custom.description else []
    if isinstance(custom.format, GrammarFormat):
        grammar = custom.format.grammar
        texts.append(f"`input` matches this {_SYNTAXES[grammar.syntax]}:\n{grammar.definition}")
    function = {"name": custom.name, "parameters": _parameters_of({"type": "string"})}
    if texts:
        function["description"] = "\n\n".join(texts)
    return {"type": "function", "function": function}


def _enforced_function(index: int, tool: ChatFunctionTool | ChatCustomTool) -> Function:
    """Return the function that is enforced."""
    if isinstance(tool, ChatFunctionTool):
        function, param = tool.function, f"tools.{index}.function.parameters"
        is_strict = bool(function.strict)
        return Function(function.name, function.parameters, strict=is_strict, param=param)
    custom = tool.custom
    if not isinstance(custom.format, GrammarFormat):
        return Function(custom.name, _parameters_of({"type": "string"}))
    grammar, lark = custom.format.grammar, None
    schema: dict[str, Any] = {"type": "string"}
    if grammar.syntax == "regex":
        schema["pattern"] = f"^(?:{_ANCHORS.sub('', grammar.definition)})$"
    else:
        lark = _quote_lark_grammar(index, grammar.definition)
    is_strict = lark is not None or grammar.syntax == "regex"
    param = f"tools.{index}.custom.format"
    return Function(custom.name, _parameters_of(schema), strict=is_strict, param=param, input=lark)


def _quote_lark_grammar(index: int, definition: str) -> QuotedLark | None:
    """Return the grammar of the text quoted as JSON; None, with a warning, if it can't be made."""
    try:
        return quoted_lark(definition)
    except ValueError:
        warn_client(f"the Lark grammar of tools.{index} is shown to the model, but not enforced")
        return None


def _parameters_of(input_schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"input": input_schema},
        "required": ["input"],
        "additionalProperties": False,
    }


def arguments_of(input: str) -> str:
    return json.dumps({"input": input}, ensure_ascii=False)


class InputReader:
    """Reads the text of one call from its arguments, `{"input": "…"}`; others are the text."""

    def __init__(self) -> None:
        self._fragments: list[str] = []  # all arguments, as long as no text has begun
        self._unread = ""  # the end of the arguments, which waits for more
        self._is_open = self._is_closed = False  # whether the text has begun, and ended

    def feed(self, fragment: str) -> str:
        """Return the text that another fragment of the arguments makes certain."""
        if self._is_open:
            self._unread += fragment
        else:
            self._fragments.append(fragment)
            self._open(fragment)
        if not self._is_open or self._is_closed:
            return ""
        match = _WHOLE_CHARACTERS.match(self._unread)
        end = match.end() if match else 0
        quoted, self._unread = self._unread[:end], self._unread[end:]
        self._is_closed = self._unread.startswith('"')
        return without_surrogates(json.loads(f'"{quoted}"', strict=False))

    def _open(self, fragment: str) -> None:
        """Look for the quote with which the text begins; drop what is before it."""
        if len(self._unread) > _LONGEST_OPENING:
            return
        self._unread += fragment
        if opening := _INPUT_OPENING.match(self._unread):
            self._unread, self._is_open = self._unread[opening.end() :], True

    def finish(self) -> str:
        """Return the text of arguments of another form, which is certain only at their end."""
        return "" if self._is_open else _text_of_other_arguments("".join(self._fragments))


def input_of(arguments: str) -> str:
    reader = InputReader()
    return reader.feed(arguments) + reader.finish()


def _text_of_other_arguments(arguments: str) -> str:
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    if isinstance(value, dict) and "input" in value:
        value = value["input"]
    elif isinstance(value, dict):
        value = next(iter(value.values()), "") if len(value) < 2 else None
    return without_surrogates(value) if isinstance(value, str) else arguments


@dataclass(frozen=True, slots=True, eq=False)
class Toolbox:
    """The tools of one request: those `shown` to the model, and those that it may call."""

    shown: tuple[Mapping[str, Any], ...] = ()
    callable: tuple[Function, ...] = ()
    required: bool = False  # the answer must be a call
    limited: bool = False  # some shown tools may not be called
    many: bool = True  # an answer may have several calls

    @property
    def strict(self) -> bool:
        """Whether a grammar must check calls that the model makes by itself."""
        return self.limited or any(function.strict for function in self.callable)


def toolbox_of(chat: ChatRequest) -> Toolbox:
    """Return the tools of a chat. Raises BadRequest for equal names or an unknown `tool_choice`."""
    tools, choice = chat.tools or [], chat.tool_choice
    all_functions = [_enforced_function(i, tool) for i, tool in enumerate(tools)]
    functions = {function.name: function for function in all_functions}
    if len(functions) < len(tools):
        raise BadRequest("two tools have the same name", param="tools")
    if choice not in (None, "none", "auto") and not tools:
        raise BadRequest("tool_choice needs tools", param="tool_choice")
    names, required = _allowed_names(choice, list(functions))
    if set(names) - functions.keys():
        raise BadRequest("tool_choice names a tool that is not in tools", param="tool_choice")
    names_one = isinstance(choice, NamedFunction | NamedCustom)
    return Toolbox(
        shown=tuple(_function_for_prompt(tool) for tool in tools),
        callable=tuple(functions[name] for name in names),
        required=required,
        limited=len(names) < len(functions),
        many=chat.parallel_tool_calls is not False and not names_one,
    )


def _allowed_names(
    choice: str | NamedFunction | NamedCustom | AllowedChoice | None, names: list[str]
) -> tuple[list[str], bool]:
    """Return the tools that may be called, and whether one must be."""
    match choice:
        case "none":
            return [], False
        case NamedFunction() | NamedCustom():
            return [choice.name], True
        case AllowedChoice(allowed_tools=allowed):
            unique_names = dict.fromkeys(tool.name for tool in allowed.tools)
            return list(unique_names), allowed.mode == "required"
    return names, choice == "required"
