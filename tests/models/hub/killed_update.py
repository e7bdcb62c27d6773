"""Puts a newer version into the directory of a model, in child processes each of which kills itself
before another change of the disk. Writes a line for each to standard output: what the model was
after the kill ("old", "new", "none" for one without config.json, or "mixed"), what it was when the
update was finished, and whether anything was left beside it.

    python -m tests.models.hub.killed_update DIRECTORY
"""

import os
import signal
import sys
from pathlib import Path

from omlx_server.models.hub import update

OLD = {"config.json": "1", "model-00001-of-00002.safetensors": "1", "tokenizer.json": "same"}
OLD |= {"model-00002-of-00002.safetensors": "1", "adapters/mine/adapters.safetensors": "own"}
NEW = {"config.json": "2", "model.safetensors": "2", "more/about.json": "2"}
KEPT = ("tokenizer.json", "adapters/mine/adapters.safetensors")


def main(directory: Path) -> None:
    left, is_killed = 0, True
    while is_killed:
        place = directory / str(left)
        _write(place / "model", OLD)
        _write(place / "staged", NEW)
        is_killed = _killed_after(left, place)
        at_the_kill = state_of(place / "model")
        update.finish(place / "ready", place / "model")
        line = at_the_kill, state_of(place / "model"), str((place / "ready").exists())
        sys.stdout.write(" ".join(line) + "\n")
        left += 1


def state_of(model: Path) -> str:
    found = {
        path.relative_to(model).as_posix(): path.read_text()
        for path in model.rglob("*")
        if path.is_file()
    }
    if "config.json" not in found:
        return "none"
    new = NEW | {name: OLD[name] for name in KEPT}
    return "old" if found == OLD else "new" if found == new else "mixed"


def _killed_after(left: int, place: Path) -> bool:
    """Whether a child was killed before its change number `left`."""
    child = os.fork()
    if child == 0:
        changes = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal changes
            if event in ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree"):
                if changes == left:
                    os.kill(os.getpid(), signal.SIGKILL)
                changes += 1

        sys.addaudithook(hook)
        names = {*NEW, "tokenizer.json"}
        update.publish(place / "staged", place / "ready", place / "model", names)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def _write(directory: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
