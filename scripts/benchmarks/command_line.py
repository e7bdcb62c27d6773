"""What the commands of `scripts/bench` have in common: options, and where tables are shown."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

MODEL = "starter"
Model = Annotated[str, typer.Option(metavar="MODEL", help="As in `omlx-server serve`.")]

OUT = Path("bench-out")
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")]

_TABLE_WIDTH = 120


def open_console() -> Console:
    """That of the terminal, or one as wide as the tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=_TABLE_WIDTH)
