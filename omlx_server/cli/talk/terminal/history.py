"""The private file of what was typed in `chat`, in the user's state directory."""

import os
from pathlib import Path

from omlx_server.errors import OmlxError, system_errors_as
from omlx_server.settings.types import own_place
from omlx_server.settings.whole_file import OTHERS, PRIVATE_DIRECTORY, PRIVATE_FILE, replacing

# A file that is larger loses its older half when a conversation begins.
_MOST_BYTES = 1 << 20
_ENTRY = b"\n# "  # how prompt_toolkit begins an entry: its time, as a comment


def history_file() -> Path:
    """Make the file and its directory. Raises OmlxError."""
    path = own_place("~/.local/state/omlx_server/chat_history")
    with system_errors_as(OmlxError, f"no history is kept: {path}"):
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            about = os.fstat(number)
            if about.st_mode & OTHERS:
                os.fchmod(number, PRIVATE_FILE)
        finally:
            os.close(number)
        if about.st_size > _MOST_BYTES:
            _halve(path)
    return path


def _halve(path: Path) -> None:
    data = path.read_bytes()
    begin = data.find(_ENTRY, len(data) - _MOST_BYTES // 2)
    with replacing(path, PRIVATE_FILE) as file:
        file.write(data[begin:] if begin >= 0 else b"")
