"""The tools of a chat request that the model sees, and those that it may or must call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omlx_server.api.chat.custom_tools import custom_function, shown_custom
from omlx_server.api.chat.request import (
    AllowedChoice,
    ChatCustomTool,
    ChatFunctionTool,
    ChatRequest,
    NamedCustom,
    NamedFunction,
)
from omlx_server.errors import BadRequest
from omlx_server.text.grammar.tools import Function


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


def _shown(tool: ChatFunctionTool | ChatCustomTool) -> Mapping[str, Any]:
    if isinstance(tool, ChatCustomTool):
        return shown_custom(tool)
    return tool.model_dump(exclude_unset=True)


def _function(index: int, tool: ChatFunctionTool | ChatCustomTool) -> Function:
    if isinstance(tool, ChatCustomTool):
        return custom_function(index, tool)
    definition = tool.function
    return Function(
        definition.name,
        definition.parameters,
        strict=bool(definition.strict),
        param=f"tools.{index}.function.parameters",
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
