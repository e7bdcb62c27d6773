"""Small JSON files of what was found out once, so that the next start need not. Any thread.

They are a convenience: one that is damaged or can't be written costs time, never a start.
"""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

Allowed = Callable[[], bool]
"""Whether anything may be written now; the settings may change while something is found out."""


def always() -> bool:
    return True


def read(file: Path) -> dict[str, Any]:
    """Empty where there is nothing that makes sense."""
    try:
        known = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def write(file: Path, known: dict[str, Any]) -> None:
    """Without notes the next start takes longer."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(known, indent=1), encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        _log.warning("%s can't be written: %s", file, error.strerror)
