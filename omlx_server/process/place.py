"""The place of a rank on its machine, which one process has at a time."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

_PLACE_FLAG = "--instead-of"


def take_place(name: str) -> None:
    """Take this place, killing its holder: a stopped process would keep its memory."""
    file_name = re.sub(r"[^\w.-]", "_", name)
    file = Path(tempfile.gettempdir()) / f"omlx-server-{os.getuid()}-{file_name}.pid"
    with suppress(OSError, ValueError, psutil.Error):
        _kill_holder(int(file.read_text()), name)
    with suppress(OSError):
        file.unlink(missing_ok=True)
        with file.open("x") as pid_file:  # never through somebody else's link
            pid_file.write(str(os.getpid()))


def _kill_holder(pid: int, name: str) -> None:
    process = psutil.Process(pid)
    arguments = process.cmdline()
    if pid != os.getpid() and _PLACE_FLAG in arguments and name in arguments:
        process.kill()
        process.wait(5)
