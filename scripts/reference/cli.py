"""docs/reference/cli.md: every command with its options, its words of help and its examples."""

import re
from collections.abc import Iterator
from inspect import cleandoc
from textwrap import dedent
from typing import Any

from typer.main import get_command

from omlx_server.cli.app import app
from scripts.reference.markdown import block, escaped, table, whole_page

_NAME = "omlx-server"
_ABOUT = """\
All commands of `omlx-server`, as `--help` of each tells of them.

Exit codes: 0 is well, 1 is a problem (nobody answers, a home that can't be written), 2 a wrong
option or setting, 130 is Ctrl-C.

What is wrong stands on stderr, as a line `error:` and, where there is one, a line `hint:`. With
`--json` it is one object on stdout instead, and the exit code is the same; `hint` may be `null`:

```json
{"error": {"message": "no server answers at http://127.0.0.1:8000", "hint": "start one with …"}}
```

A wrong command line, such as an unknown option or a name that is missing, is told with its usage on
stderr, and with `--json` among its words as such an object, too. Warnings and progress stand on
stderr in both cases. `cache export --json -o -` tells on stderr, since stdout is the archive."""
_AS_IT_IS = "\b\n"
"""Click's mark of a paragraph whose lines stay."""


def page() -> str:
    return whole_page("Command line", _ABOUT, _command(get_command(app), _NAME, 2))


def _command(command: Any, name: str, level: int) -> Iterator[str]:
    """A command and those below it."""
    yield f"{'#' * level} {name}"
    yield from _words(command.help or "")
    context = command.make_context(name, [], resilient_parsing=True)
    yield block("text", command.get_usage(context).removeprefix("Usage: "))
    rows = [_row(p, record) for p in command.params if (record := p.get_help_record(context))]
    if rows:
        yield table(("option", ""), rows)
    for key, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _command(below, f"{name} {key}", min(level + 1, 3))


def _row(parameter: Any, record: tuple[str, str]) -> tuple[str, str]:
    """What is around an argument's name tells in the usage what it tells here."""
    names, about = record
    if parameter.param_type_name == "argument":
        names = re.sub(r"[\[\]{}]|<str>", "", names).strip()
    return f"`{names}`", escaped(about)


def _words(text: str) -> Iterator[str]:
    for paragraph in cleandoc(text).split("\n\n"):
        head, _, rest = paragraph.removeprefix(_AS_IT_IS).partition("\n")
        if re.fullmatch(r"Examples?:", head):
            yield block("sh", "\n".join(map(_example, dedent(rest).splitlines())))
        else:
            yield escaped(paragraph.removeprefix(_AS_IT_IS))


def _example(line: str) -> str:
    """What it does stands behind it, apart."""
    command, gap, about = line.partition("    ")
    return f"{command}  # {about.strip()}" if gap else line.rstrip()
