"""The form of a report to share: figures and findings without prompts, paths, and names of the user
or the machine."""

import getpass
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from omlx_server import __version__
from omlx_server.compute.hardware import device
from omlx_server.compute.hardware.heap import ram_bytes
from omlx_server.doctor.finding import Finding, Level

SCHEMA = 1
_PATH = re.compile(r"(?<![\w/.])(?:~|\.{0,2})/[^\s'\",;()]+")
_SHORTEST_NAME = 3

Checked = tuple[Finding, Mapping[str, Any]]
"""A finding, and the figures behind it."""


def shareable(
    kind: str,
    *,
    model: Mapping[str, Any],
    settings: Mapping[str, Any],
    checks: Sequence[Checked] = (),
    quick: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Return a report of this `kind` for JSON; `more` are parts that only this kind has."""
    rows = [
        {**asdict(finding), "fix": finding.fix or None, "figures": dict(figures)}
        for finding, figures in checks
    ]
    report = {
        "kind": kind,
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "ok": all(finding.level is not Level.FAIL for finding, _ in checks),
        "quick": quick,
        "versions": versions(),
        "machine": machine(),
        "model": model,
        "settings": settings,
        "checks": rows,
        **more,
    }
    hidden: dict[str, Any] = without_names(report)
    return hidden


def versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("mlx", "mlx-lm")}
    return {"omlx-server": __version__, "python": platform.python_version(), **packages}


def machine() -> dict[str, Any]:
    """Return the kind of machine; sizes in bytes."""
    return {
        "system": platform.system(),
        "release": platform.mac_ver()[0] or platform.release(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "ram": ram_bytes(),
        "device": device.name(),
        "working_set": device.working_set(),
    }


def without_names(value: Any) -> Any:
    """Return `value` without paths and the names of the user and the machine."""
    match value:
        case str():
            return _hidden(value)
        case Mapping():
            return {key: without_names(item) for key, item in value.items()}
        case list() | tuple():
            return [without_names(item) for item in value]
    return value


def _hidden(text: str) -> str:
    text = _PATH.sub("PATH", text)
    for name in (socket.gethostname(), _user()):
        if len(name) >= _SHORTEST_NAME:
            text = re.sub(rf"\b{re.escape(name)}\b", "NAME", text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return ""
