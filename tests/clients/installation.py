"""An environment for each client, beside the project's own: their pins contradict each other."""

import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = Path(sys.prefix) / "clients"
REQUIREMENTS = HERE / "requirements"
NODE_CLIENTS = ("compatcanary", "ollama", "vercel", "vercel_ollama")
NODE_SCENARIOS = HERE / "scenarios.mjs"
INSTALL_SECONDS = 1200.0
_STAMP = ".installed"


class NotInstalled(RuntimeError):
    """With what to say about it."""


class NoNode(RuntimeError):
    """The machine has no Node.js; such clients are skipped."""


@dataclass(frozen=True, slots=True)
class Installed:
    """`command` runs all scenarios of the client."""

    name: str
    command: tuple[str, ...]


def names() -> list[str]:
    """Of all clients."""
    return [*sorted(path.stem for path in REQUIREMENTS.glob("*.txt")), *NODE_CLIENTS]


def log_of(name: str) -> Path:
    """Where a client's own words go; of its last run."""
    return ENVIRONMENTS / f"{name}.log"


def install(name: str) -> Installed:
    """Quick when nothing changed. Raises NotInstalled and NoNode."""
    return _install_node(name) if name in NODE_CLIENTS else _install_python(name)


def _install_python(name: str) -> Installed:
    wanted, place = REQUIREMENTS / f"{name}.txt", ENVIRONMENTS / name
    python = place / "bin" / "python"
    if not is_stamped(place, wanted.read_text(encoding="utf-8")):
        venv.create(place, clear=True)
        pip = (sys.executable, "-m", "pip", "--python", python, "install")
        quietly = ("--quiet", "--disable-pip-version-check")
        run(name, *map(str, (*pip, *quietly, "--requirement", wanted)), cwd=HERE)
        stamp(place, wanted.read_text(encoding="utf-8"))
    return Installed(name, (str(python), "-m", f"tests.clients.{name}_client"))


def _install_node(name: str) -> Installed:
    """The scripts are copied: Node looks for packages beside the file that imports them."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NoNode("skipped: node and npm are not on the PATH")
    own, place = HERE / name, ENVIRONMENTS / name
    place.mkdir(parents=True, exist_ok=True)
    for source in (NODE_SCENARIOS, *own.iterdir()):
        if source.is_file():
            shutil.copy(source, place)
    lock = (own / "package-lock.json").read_text(encoding="utf-8")
    if not is_stamped(place, lock):
        run(name, npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=place)
        stamp(place, lock)
    return Installed(name, (node, str(place / "client.mjs")))


def is_stamped(place: Path, wanted: str) -> bool:
    stamp = place / _STAMP
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted


def stamp(place: Path, wanted: str) -> None:
    (place / _STAMP).write_text(wanted, encoding="utf-8")


def run(name: str, *command: str, cwd: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{name} was not installed within {INSTALL_SECONDS:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason was given"]
        raise NotInstalled(f"{name} could not be installed: {lines[-1]}")
