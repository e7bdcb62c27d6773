"""Reads small files, whatever lies under their names, and writes JSON. Any thread."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20
PROBLEMS = (OSError, ValueError, RecursionError)
"""What `read` and `text` raise."""


def read(path: Path) -> Any:
    """Return the JSON value. Raises one of PROBLEMS."""
    return json.loads(text(path))


def text(path: Path) -> str:
    """Raises one of PROBLEMS if the file is not UTF-8, not regular, or larger than MOST_BYTES."""
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    return content.decode()


def read_json(path: Path) -> Any:
    """Return the JSON value, or None if it can't be read."""
    try:
        return read(path)
    except PROBLEMS:
        return None


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object; empty for anything else, or if it can't be read."""
    value = read_json(path)
    return value if isinstance(value, dict) else {}


def write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
