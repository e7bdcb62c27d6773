"""Compiles and renders chat templates: sandboxed, within limits of time and length. Any thread.
Beyond transformers, lists have `append` and `pop`, and `tojson` takes iterators, as in
llama.cpp."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateRuntimeError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class LimitExceeded(TemplateRuntimeError):
    """A rendering takes too much time or text."""


class RenderingTooLong(LimitExceeded):
    """A rendering has too many characters."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Limits a rendering to `max_chars` characters and `seconds`, checked at every call,
    attribute and piece of output."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, *, max_chars: int, seconds: float) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self._max_chars = max_chars
        self._seconds = seconds
        self._clock = threading.local()
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _MakeDict()

    def render(self, template: Template, variables: Mapping[str, Any]) -> str:
        self._clock.deadline = time.monotonic() + self._seconds
        pieces: list[str] = []
        length = 0
        for piece in template.generate(variables):
            length += len(piece)
            if length > self._max_chars:
                raise RenderingTooLong(f"the prompt is longer than {self._max_chars} characters")
            pieces.append(piece)
            self._check_time()
        return "".join(pieces)

    def _check_time(self) -> None:
        if time.monotonic() > self._clock.deadline:
            raise LimitExceeded(f"rendering took longer than {self._seconds:g} s")

    def getattr(self, obj: Any, attribute: str) -> Any:
        self._check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self._check_time()
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self._check_time()
        return super().call(__context, __obj, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, list) and attr in ("append", "pop"):
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._check_time()
        if operator == "**" or self._repeats_too_often(left, right):
            raise SecurityError(f"refused: {operator} can make a value of any size")
        return super().call_binop(context, operator, left, right)

    def _repeats_too_often(self, left: Any, right: Any) -> bool:
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                return len(value) * times > self._max_chars
        return False


class _GenerationTag(Extension):
    """`{% generation %}` marks text for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """jinja's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _MakeDict:
    """`dict` for templates; a class itself would show too much."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't hold {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own escapes for HTML.
    return json.dumps(
        list(value) if isinstance(value, Iterator) else value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
