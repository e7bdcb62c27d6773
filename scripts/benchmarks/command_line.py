"""What the commands of `scripts/bench` have in common: options, the model, and where results go."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from omlx_server import settings
from omlx_server.cli.shell.progress import open_display
from omlx_server.errors import UsageError
from omlx_server.models.locate import Located
from omlx_server.wiring import model_directory

MODEL = "starter"
Model = Annotated[str, typer.Option(metavar="MODEL", help="As in `omlx-server serve`.")]

OUT = Path("bench-out")
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")]

Repeats = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", show_default=False, help="Rounds [default: 5; --quick: fewer]."
    ),
]
"""How often all is measured; 0 for as often as the plan says."""

Only = Annotated[str, typer.Option(metavar="NAME[,NAME]", help="Measure these parts only.")]

_TABLE_WIDTH = 120


def chosen_parts(only: str, parts: Sequence[str]) -> tuple[str, ...]:
    """Return the names in `only`. Raises UsageError for one that is not among `parts`."""
    names = tuple(name.strip() for name in only.split(","))
    unknown = [name for name in names if name not in parts]
    if unknown:
        hint = f"known: {', '.join(parts)}"
        raise UsageError(f"--only: there is no measurement {unknown[0]!r}", hint=hint)
    return names


def open_console() -> Console:
    """That of the terminal, or one as wide as the tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=_TABLE_WIDTH)


def find(model: str) -> Located:
    """The model of this name, with the progress of a download shown."""
    with open_display() as display:
        return model_directory.find_model(model, settings.load().settings, display)


def publish(
    name: str,
    out: Path,
    *,
    write: Callable[[Path], None],
    markdown: str,
    tables: RenderableType,
) -> None:
    """Write NAME.json, by `write`, and NAME.md into `out`, and show the tables."""
    as_json, as_markdown = out / f"{name}.json", out / f"{name}.md"
    write(as_json)
    as_markdown.write_text(markdown, encoding="utf-8")
    console = open_console()
    console.print(tables)
    console.print(f"written: {as_json}, {as_markdown}", soft_wrap=True)
