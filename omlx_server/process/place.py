"""The place of a rank on its machine, which one process has at a time."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

_OURS = "--instead-of"


def take_place(name: str) -> None:
    """Take this place, killing its holder: a stopped process would keep its memory."""
    safe = re.sub(r"[^\w.-]", "_", name)
    file = Path(tempfile.gettempdir()) / f"omlx-server-{os.getuid()}-{safe}.pid"
    with suppress(OSError, ValueError, psutil.Error):
        _kill(int(file.read_text()), name)
    with suppress(OSError):
        file.unlink(missing_ok=True)
        with file.open("x") as pid_file:  # never through somebody else's link
            pid_file.write(str(os.getpid()))


def _kill(pid: int, name: str) -> None:
    process = psutil.Process(pid)
    words = process.cmdline()
    if pid != os.getpid() and _OURS in words and name in words:
        process.kill()
        process.wait(5)
