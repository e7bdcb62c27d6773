"""Notes: JSON files that keep computed results for the next start. Any thread."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

Allowed = Callable[[], bool]  # whether notes may be written now: settings may have changed


def always() -> bool:
    return True


def read(file: Path) -> dict[str, Any]:
    """Return a file's JSON object; empty where there is none."""
    try:
        notes = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}


def write(file: Path, known: dict[str, Any]) -> None:
    """Replace a file, for this user only. Logs an OSError."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(known, indent=1), encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        _log.warning("%s can't be written: %s", file, error.strerror)
