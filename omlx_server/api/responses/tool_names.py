"""The names under which a model sees a request's tools. Pure.

A function of a namespace is `namespace__name` to the model. Names are looked up, never split, as a
name may contain `__`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from omlx_server.api.responses import schema

_MAX_LENGTH = 256
_SEPARATOR = "__"


@dataclass(frozen=True, slots=True)
class PromptTool:
    """A tool of the request. Only the first of a namespace has its description."""

    shown_name: str
    tool: schema.ResponsesFunctionTool | schema.ResponsesCustomTool
    namespace: str | None = None
    namespace_description: str | None = None

    @property
    def is_custom(self) -> bool:
        return isinstance(self.tool, schema.ResponsesCustomTool)


class ToolNames:
    """The tools of one request, those of namespaces included."""

    def __init__(self, tools: Iterable[schema.Tool] = ()) -> None:
        known = [tool for tool in tools if not isinstance(tool, schema.OtherTool)]
        # Tools without a namespace come first: they keep their names.
        alone = [tool for tool in known if not isinstance(tool, schema.NamespaceTool)]
        self._shown_names: dict[tuple[str | None, str], str] = {
            (None, tool.name): tool.name for tool in alone
        }
        self._taken_names = set(self._shown_names.values())
        self.tools = [shown for tool in known for shown in self._prompt_tools(tool)]
        self._by_shown_name = {tool.shown_name: tool for tool in self.tools}

    def find(self, shown_name: str) -> PromptTool | None:
        return self._by_shown_name.get(shown_name)

    def shown_name(self, name: str, namespace: str | None = None) -> str:
        """Return the name under which the model sees a tool, or saw it in an earlier request."""
        return self._shown_names.get((namespace, name)) or _join_name(name, namespace)

    def chosen_names(self, choice: schema.ResponsesNamedTool) -> list[str]:
        """Return the names of the tool, or of all tools of the namespace, that a choice names. A
        tool of a namespace may be named without it."""
        if choice.type == "namespace":
            return [tool.shown_name for tool in self.tools if tool.namespace == choice.name]
        if choice.type not in ("function", "custom") or not choice.name:
            return []
        name = self.shown_name(choice.name, choice.namespace)
        if name in self._by_shown_name or choice.namespace is not None:
            return [name]
        in_namespaces = [tool.shown_name for tool in self.tools if tool.tool.name == name]
        return in_namespaces if len(in_namespaces) == 1 else [name]

    def _prompt_tools(self, given: schema.KnownTool) -> Iterator[PromptTool]:
        if not isinstance(given, schema.NamespaceTool):
            yield PromptTool(given.name, given)
            return
        description = given.description
        for tool in given.known_tools:
            shown_name = self._reserve_name(tool.name, given.name)
            yield PromptTool(shown_name, tool, given.name, description)
            description = None

    def _reserve_name(self, name: str, namespace: str) -> str:
        """Return a tool's shown name, with a number if another tool has it."""
        key = (namespace, name)
        if key not in self._shown_names:
            joined = shown_name = _join_name(name, namespace)
            number = 1
            while shown_name in self._taken_names:
                number += 1
                shown_name = f"{joined[: _MAX_LENGTH - 8]}_{number}"
            self._shown_names[key] = shown_name
            self._taken_names.add(shown_name)
        return self._shown_names[key]


def _join_name(name: str, namespace: str | None) -> str:
    if not namespace:
        return name
    separator = "" if namespace.endswith(_SEPARATOR) else _SEPARATOR
    return f"{namespace}{separator}{name}"[:_MAX_LENGTH]
