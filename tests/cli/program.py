"""The program and its commands, run as a user would."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperCommand
from typer.main import get_command

from omlx_server.cli.app import app

ROOT = Path(__file__).parents[2]
HEAVY = {
    "mlx",
    "mlx_lm",
    "transformers",
    "fastapi",
    "uvicorn",
    "numpy",
    "httpx",
    "rich",
    "pydantic",
}


def program(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omlx_server", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"} | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


LIST_IMPORTS = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("\\n" + " ".join({m.split(".")[0] for m in sys.modules})))
sys.argv = ["omlx-server", *sys.argv[1:]]
from omlx_server.__main__ import main
main()
"""


def imported_by(*arguments: str, code: int = 0) -> set[str]:
    return imports_of(*arguments, code=code)[0]


def imports_of(*arguments: str, code: int) -> tuple[set[str], str]:
    """The packages that the program imports, and what it says on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", LIST_IMPORTS, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    said, _, names = done.stderr.rpartition("\n")
    return set(names.split()), said


def commands(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """The whole tree, with the words that lead to each."""
    command = command or get_command(app)
    yield name, command
    for word, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{name} {word}".strip())


def break_commands(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Whatever a command's function would do, it raises the error instead."""

    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(TyperCommand, "invoke", fail)
