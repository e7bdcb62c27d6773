"""The names under which a model sees a request's tools. Pure.

A function of a namespace is `namespace__name` to the model. Names are looked up, never split, as a
name may contain `__`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from omlx_server.api.responses import schema

_LONGEST = 256
_BETWEEN = "__"


@dataclass(frozen=True, slots=True)
class PromptTool:
    """A tool that the model sees as `shown`. `about` describes its namespace, for the first
    tool."""

    shown: str
    tool: schema.ResponsesFunctionTool | schema.ResponsesCustomTool
    namespace: str | None = None
    about: str | None = None

    @property
    def is_custom(self) -> bool:
        return isinstance(self.tool, schema.ResponsesCustomTool)


class ToolNames:
    """The tools of one request, those of namespaces included."""

    def __init__(self, tools: Iterable[schema.Tool] = ()) -> None:
        known = [tool for tool in tools if not isinstance(tool, schema.OtherTool)]
        # Tools without a namespace come first: they keep their names.
        alone = [tool for tool in known if not isinstance(tool, schema.NamespaceTool)]
        self._shown: dict[tuple[str | None, str], str] = {
            (None, tool.name): tool.name for tool in alone
        }
        self._taken = set(self._shown.values())
        self.tools = [named for tool in known for named in self._named(tool)]
        self._by_shown = {named.shown: named for named in self.tools}

    def tool(self, shown: str) -> PromptTool | None:
        return self._by_shown.get(shown)

    def shown(self, name: str, namespace: str | None = None) -> str:
        """Return the name under which the model sees a tool, or saw it in an earlier request."""
        return self._shown.get((namespace, name)) or _joined(name, namespace)

    def chosen(self, choice: schema.ResponsesNamedTool) -> list[str]:
        """Return the names of the tool, or of all tools of the namespace, that a choice names. A
        tool of a namespace may be named without it."""
        if choice.type == "namespace":
            return [named.shown for named in self.tools if named.namespace == choice.name]
        if choice.type not in ("function", "custom") or not choice.name:
            return []
        name = self.shown(choice.name, choice.namespace)
        if name in self._by_shown or choice.namespace is not None:
            return [name]
        matches = [named.shown for named in self.tools if named.tool.name == name]
        return matches if len(matches) == 1 else [name]

    def _named(self, tool: schema.KnownTool) -> Iterator[PromptTool]:
        if not isinstance(tool, schema.NamespaceTool):
            yield PromptTool(tool.name, tool)
            return
        about = tool.description
        for inner in tool.known:
            yield PromptTool(self._new(inner.name, tool.name), inner, tool.name, about)
            about = None

    def _new(self, name: str, namespace: str) -> str:
        key = (namespace, name)
        if key not in self._shown:
            joined = shown = _joined(name, namespace)
            number = 1
            while shown in self._taken:
                number += 1
                shown = f"{joined[: _LONGEST - 8]}_{number}"
            self._shown[key] = shown
            self._taken.add(shown)
        return self._shown[key]


def _joined(name: str, namespace: str | None) -> str:
    if not namespace:
        return name
    between = "" if namespace.endswith(_BETWEEN) else _BETWEEN
    return f"{namespace}{between}{name}"[:_LONGEST]
