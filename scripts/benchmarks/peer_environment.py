"""A virtual environment for one peer: made once, with pip, in build/peers/.

A stamp is written last, so that one which was cut short is made anew.
"""

import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from scripts.benchmarks import peer_build
from scripts.benchmarks.peer_command import Tell, run
from scripts.benchmarks.peer_pins import Pins

PEERS_DIR = Path("build") / "peers"
_STAMP = ".complete"
_QUIETLY = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")


def program(pins: Pins, name: str) -> Path:
    """A program of the peer's environment."""
    return _home(pins) / "bin" / name


def ensure(pins: Pins) -> None:
    """Make the environment if it is not there. Raises OmlxError, in one line."""
    if _is_complete(pins):
        return
    console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    takes = "ten minutes or more, it is compiled" if pins.build else "a minute or more"
    console.print(f"installing {pins.title} into {_home(pins)}: once, {takes} ...")
    with console.status("making the environment") as status:
        _make(pins, lambda line: status.update(escape(line[: console.width - 3])))
    console.print(f"installed {pins.title} ({pins.licence})")


def _make(pins: Pins, tell: Tell) -> None:
    home = _home(pins)
    home.mkdir(parents=True, exist_ok=True)
    run(pins, [sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)], tell)
    python = str(program(pins, "python"))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", *_QUIETLY]
    if pins.requirements:
        run(pins, [*pip, *pins.requirements], tell)
    if pins.build is None:
        run(pins, [*pip, "--no-deps", f"{pins.package}=={pins.release}"], tell)
    else:
        peer_build.build(pins, pins.build, home, tell)
    (home / _STAMP).write_text(_identity(pins), encoding="utf-8")


def _is_complete(pins: Pins) -> bool:
    stamp = _home(pins) / _STAMP
    if not stamp.is_file() or not program(pins, "python").exists():
        return False
    return stamp.read_text(encoding="utf-8") == _identity(pins)


def _identity(pins: Pins) -> str:
    """What makes another environment necessary."""
    options = pins.build.options if pins.build else ()
    return "\n".join((sys.version, pins.title, *pins.requirements, *options))


def _home(pins: Pins) -> Path:
    return PEERS_DIR / pins.package
