"""What is said of a command line that is wrong: an option or a command that there is not, a value
that is none, or nothing where something must stand.

In typer's words and form. But what it says of numbers ("is not a valid int range") is said anew, as
two lines like those of any other error; and with --json all of it is one object.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import typer

from omlx_server.cli.shell import output
from omlx_server.cli.shell.sections import SectionedGroup
from omlx_server.errors import UsageError

_WORDS = "omlx_server.words"
# The name of a type of typer's -> what it takes.
_NUMBERS = {
    "int": "a whole number",
    "int range": "a whole number",
    "float": "a number",
    "float range": "a number",
}
_TO_STDOUT = re.compile(r"(^| )(-o ?|--output[ =])-( |$)")
"""`cache export -o -`: there stdout is the archive."""


class Root(SectionedGroup):
    """The command above all others, through which all their errors pass."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        words = tuple(args)  # typer takes them away one by one
        with _explained(words):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_WORDS] = words
        return context

    def invoke(self, ctx: Any) -> Any:
        with _explained(ctx.meta[_WORDS]):
            return super().invoke(ctx)


@contextmanager
def _explained(words: Sequence[str]) -> Iterator[None]:
    """Raises typer.Exit for what was said here; the rest is left for typer to say."""
    try:
        yield
    except typer.TyperException as error:
        as_json = "--json" in takewhile(lambda word: word != "--", words)
        of_number = _of_number(error)
        if not (as_json or of_number):
            raise
        wrong = UsageError(of_number or error.format_message(), hint=_hint(error))
        stream = sys.stderr if _TO_STDOUT.search(" ".join(words)) else None
        code = output.report(wrong, as_json=as_json, stream=stream)
        raise typer.Exit(code) from None


def _of_number(error: typer.TyperException) -> str:
    """What is wrong with a number; empty where no number is wrong."""
    if not isinstance(error, typer.BadParameter) or error.param is None:
        return ""
    kind: Any = error.param.type
    value, is_not, _ = error.message.rpartition(" is not ")
    if not is_not or kind.name not in _NUMBERS:
        return ""
    own = error.param.human_readable_name
    name = next((word for word in error.param.opts if word.startswith("--")), own)
    return f"{name}: {value.removesuffix('.0')} is not {_NUMBERS[kind.name]}{_bounds(kind)}"


def _bounds(kind: Any) -> str:
    if not kind.name.endswith("range"):
        return ""
    if kind.max is None:
        return f" of at least {kind.min}"
    return f" of at most {kind.max}" if kind.min is None else f" from {kind.min} to {kind.max}"


def _hint(error: Any) -> str:
    """Typer does not always know of which command it speaks."""
    context = getattr(error, "ctx", None)
    return f"see `{context.command_path} --help`" if context else ""
