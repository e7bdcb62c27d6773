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
from omlx_server.api.http.exchange import warned
from omlx_server.errors import BadRequest
from omlx_server.text.encoding.utf8 import whole
from omlx_server.text.grammar.quoted_lark import QuotedLark, quoted_lark
from omlx_server.text.grammar.tools import Function

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_LONGEST_OPENING = 64
# Whole characters of a JSON string: half of a surrogate pair waits for what follows.
_CHARACTERS = re.compile(
    r"""(?:[^"\\]+|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}
    |\\u[0-9a-fA-F]{4}(?=[^\\]|\\[^u]|\\u[0-9a-fA-F]{4}))*""",
    re.VERBOSE,
)
_ANCHORS = re.compile(r"\A\^|(?<!\\)\$\Z")
_SYNTAXES = {"lark": "Lark grammar", "regex": "regular expression"}


def _shown(tool: ChatFunctionTool | ChatCustomTool) -> Mapping[str, Any]:
    """Return the function that the model sees."""
    if isinstance(tool, ChatFunctionTool):
        return tool.model_dump(exclude_unset=True)
    custom = tool.custom
    about = [custom.description] if custom.description else []
    if isinstance(custom.format, GrammarFormat):
        grammar = custom.format.grammar
        about.append(f"`input` matches this {_SYNTAXES[grammar.syntax]}:\n{grammar.definition}")
    function = {"name": custom.name, "parameters": _parameters({"type": "string"})}
    if about:
        function["description"] = "\n\n".join(about)
    return {"type": "function", "function": function}


def _function(index: int, tool: ChatFunctionTool | ChatCustomTool) -> Function:
    """Return the function that is enforced."""
    if isinstance(tool, ChatFunctionTool):
        definition, param = tool.function, f"tools.{index}.function.parameters"
        return Function(
            definition.name, definition.parameters, strict=bool(definition.strict), param=param
        )
    custom = tool.custom
    if not isinstance(custom.format, GrammarFormat):
        return Function(custom.name, _parameters({"type": "string"}))
    grammar, lark = custom.format.grammar, None
    schema: dict[str, Any] = {"type": "string"}
    if grammar.syntax == "regex":
        schema["pattern"] = f"^(?:{_ANCHORS.sub('', grammar.definition)})$"
    else:
        lark = _quoted(index, grammar.definition)
    is_strict = lark is not None or grammar.syntax == "regex"
    param = f"tools.{index}.custom.format"
    return Function(custom.name, _parameters(schema), strict=is_strict, param=param, input=lark)


def _quoted(index: int, definition: str) -> QuotedLark | None:
    try:
        return quoted_lark(definition)
    except ValueError:
        warned(f"the Lark grammar of tools.{index} is shown to the model, but not enforced")
        return None


def _parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"input": schema},
        "required": ["input"],
        "additionalProperties": False,
    }


def arguments_of(input: str) -> str:
    return json.dumps({"input": input}, ensure_ascii=False)


class InputReader:
    """Reads the text of one call from its arguments. Other arguments than `{"input": "…"}` are the
    text."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._held = ""
        self._is_open = self._is_closed = False

    def feed(self, fragment: str) -> str:
        if not self._is_open:
            self._pieces.append(fragment)
            if len(self._held) > _LONGEST_OPENING:
                return ""
            self._held += fragment
            opening = _OPENING.match(self._held)
            if opening is None:
                return ""
            fragment, self._held, self._is_open = self._held[opening.end() :], "", True
        if self._is_closed:
            return ""
        text = self._held + fragment
        end = match.end() if (match := _CHARACTERS.match(text)) else 0
        self._held, self._is_closed = text[end:], text[end : end + 1] == '"'
        return whole(json.loads(f'"{text[:end]}"', strict=False))

    def finish(self) -> str:
        return "" if self._is_open else _text_of("".join(self._pieces))


def input_of(arguments: str) -> str:
    reader = InputReader()
    return reader.feed(arguments) + reader.finish()


def _text_of(arguments: str) -> str:
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    if isinstance(value, dict):
        value = value.get("input", next(iter(value.values()), "") if len(value) < 2 else None)
    return whole(value) if isinstance(value, str) else arguments


@dataclass(frozen=True, slots=True, eq=False)
class Toolbox:
    """The tools of one request: `shown` to the model, `callable`; a call may be `required`, or
    `many` allowed. `limited`: some shown tools may not be called."""

    shown: tuple[Mapping[str, Any], ...] = ()
    callable: tuple[Function, ...] = ()
    required: bool = False
    limited: bool = False
    many: bool = True

    @property
    def strict(self) -> bool:
        """Whether a grammar must check calls that the model makes by itself."""
        return self.limited or any(function.strict for function in self.callable)


def toolbox_of(chat: ChatRequest) -> Toolbox:
    """Return the tools of a chat. Raises BadRequest for equal names or an unknown `tool_choice`."""
    tools, choice = chat.tools or [], chat.tool_choice
    all_functions = [_function(i, tool) for i, tool in enumerate(tools)]
    functions = {function.name: function for function in all_functions}
    if len(functions) < len(tools):
        raise BadRequest("two tools have the same name", param="tools")
    if choice not in (None, "none", "auto") and not tools:
        raise BadRequest("tool_choice needs tools", param="tool_choice")
    names, required = _chosen(choice, list(functions))
    for name in names:
        if name not in functions:
            problem = "tool_choice names a tool that is not in tools"
            raise BadRequest(problem, param="tool_choice")
    return Toolbox(
        shown=tuple(_shown(tool) for tool in tools),
        callable=tuple(functions[name] for name in names),
        required=required,
        limited=len(names) < len(functions),
        many=chat.parallel_tool_calls is not False
        and not isinstance(choice, NamedFunction | NamedCustom),
    )


def _chosen(
    choice: str | NamedFunction | NamedCustom | AllowedChoice | None, names: list[str]
) -> tuple[list[str], bool]:
    match choice:
        case "none":
            return [], False
        case NamedFunction() | NamedCustom():
            return [choice.name], True
        case AllowedChoice(allowed_tools=allowed):
            some = dict.fromkeys(tool.name for tool in allowed.tools)
            return list(some), allowed.mode == "required"
    return names, choice == "required"
