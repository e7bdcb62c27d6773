"""The time that a model stays loaded (`keep_alive`). Pure."""

import math
import re

from omlx_server.api.ollama.request import KeepAlive
from omlx_server.errors import BadRequest

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(rf"([+-]?)((?:{_PART})+)")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?")


def seconds_of(keep_alive: KeepAlive | None) -> float | None:
    """Return seconds, infinity for negative ones; None for None. Raises BadRequest for a text that
    is no duration in Go's form."""
    if keep_alive is None:
        return None
    seconds = _parsed(keep_alive) if isinstance(keep_alive, str) else keep_alive
    return math.inf if seconds < 0 else seconds


def _parsed(text: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadRequest(
            'keep_alive must be seconds, or a duration such as "5m" or "1h30m"', param="keep_alive"
        )
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, match[2]))
    return -seconds if match[1] == "-" else seconds
