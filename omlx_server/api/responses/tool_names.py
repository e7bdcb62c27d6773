"""The names under which a model sees the tools of a request for a response. Pure.

A function of a namespace is `namespace__name` to the model. Names are looked up, never taken apart,
so that a name may have `__` in it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from omlx_server.api.responses import schema

_LONGEST = 256
_BETWEEN = "__"


@dataclass(frozen=True, slots=True)
class PromptTool:
    """A tool that the model sees. `shown`: its name in the prompt. `about`: the description of its
    namespace, for the first tool of one."""

    shown: str
    tool: schema.ResponsesFunctionTool | schema.ResponsesCustomTool
    namespace: str | None = None
    about: str | None = None

    @property
    def is_custom(self) -> bool:
        return isinstance(self.tool, schema.ResponsesCustomTool)


class ToolNames:
    """The functions and custom tools of one request, those of namespaces included."""

    def __init__(self, tools: Iterable[schema.Tool] = ()) -> None:
        self._shown: dict[tuple[str | None, str], str] = {}
        known = [tool for tool in tools if not isinstance(tool, schema.OtherTool)]
        # Tools without a namespace come first: they keep their names.
        alone = [tool for tool in known if not isinstance(tool, schema.NamespaceTool)]
        self._shown = {(None, tool.name): tool.name for tool in alone}
        self._taken = set(self._shown.values())
        self.tools = [named for tool in known for named in self._named(tool)]
        self._by_shown = {named.shown: named for named in self.tools}

    def tool(self, shown: str) -> PromptTool | None:
        """The tool that the model sees under this name."""
        return self._by_shown.get(shown)

    def shown(self, name: str, namespace: str | None = None) -> str:
        """The name under which the model sees a tool, or saw it in an earlier request."""
        return self._shown.get((namespace, name)) or _joined(name, namespace)

    def chosen(self, choice: schema.ResponsesNamedTool) -> list[str]:
        """The names that the model sees of what a tool choice names: of a tool, or of all tools of
        a namespace. A tool of a namespace may be named without it."""
        if choice.type == "namespace":
            return [named.shown for named in self.tools if named.namespace == choice.name]
        if choice.type not in ("function", "custom") or not choice.name:
            return []
        name = self.shown(choice.name, choice.namespace)
        if name in self._by_shown or choice.namespace is not None:
            return [name]
        alike = [named.shown for named in self.tools if named.tool.name == name]
        return alike if len(alike) == 1 else [name]

    def _named(self, tool: schema.KnownTool) -> Iterator[PromptTool]:
        if not isinstance(tool, schema.NamespaceTool):
            yield PromptTool(tool.name, tool)
            return
        about = tool.description
        for inner in tool.known:
            yield PromptTool(self._new(inner.name, tool.name), inner, tool.name, about)
            about = None

    def _new(self, name: str, namespace: str) -> str:
        """The name to show for a tool of a namespace: one that no other tool has."""
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
