"""The report of a self-test, to share: figures and findings, without texts of prompts, paths, and
names of the user or the machine."""

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
from omlx_server.compute.hardware.machine import ram_bytes
from omlx_server.doctor.finding import Level
from omlx_server.doctor.selftest.check import Check
from omlx_server.doctor.selftest.subject import Subject
from omlx_server.models.description import described
from omlx_server.wiring.model_factory import limits

SCHEMA = 1
_KIND = "omlx-server self-test"
_PATH = re.compile(r"(?<![\w/.])(?:~|\.{0,2})/[^\s'\",;()]+")
_SHORTEST_NAME = 3


def document(subject: Subject, checks: Sequence[Check], *, quick: bool) -> dict[str, Any]:
    """The report as it is written as JSON."""
    rows = [
        {**asdict(check.finding), "fix": check.finding.fix or None, "figures": dict(check.figures)}
        for check in checks
    ]
    report = {
        "kind": _KIND,
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "ok": not failed(checks),
        "quick": quick,
        "seed": subject.seed,
        "versions": versions(),
        "machine": machine(),
        "model": _model(subject),
        "settings": _settings(subject),
        "checks": rows,
    }
    shared: dict[str, Any] = without_names(report)
    return shared


def failed(checks: Sequence[Check]) -> bool:
    return any(check.finding.level is Level.FAIL for check in checks)


def versions() -> dict[str, str]:
    """The versions of what computes."""
    packages = {name: metadata.version(name) for name in ("mlx", "mlx-lm")}
    return {"omlx-server": __version__, "python": platform.python_version(), **packages}


def machine() -> dict[str, Any]:
    """The kind of machine; sizes in bytes."""
    return {
        "system": platform.system(),
        "release": platform.mac_ver()[0] or platform.release(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "ram": ram_bytes(),
        "device": device.name(),
        "working_set": device.working_set(),
    }


def _model(subject: Subject) -> dict[str, Any]:
    dims, about = subject.loaded.dims, described(subject.located.path)
    return {
        "name": subject.located.names[0],
        "type": about.model_type if about else "",
        "weight_bytes": subject.loaded.weight_bytes,
        "dims": asdict(dims),
        "drafts": subject.loaded.drafter is not None or subject.loaded.has_heads,
    }


def _settings(subject: Subject) -> dict[str, Any]:
    settings, names = subject.settings, subject.located.names
    kv, found = settings.kv_cache_of(names), limits(settings, names)
    return {
        "kv_cache": {"scheme": kv.scheme, "bits": kv.bits, "group_size": kv.group_size},
        "cache.enabled": settings.cache.enabled,
        "cache.hot_cache_only": settings.cache.hot_cache_only,
        "cache.block_tokens": settings.cache.block_tokens,
        "prefill_chunk_tokens": found.prefill_chunk_tokens,
        "max_batch_size": found.max_batch_size,
        "speculation": settings.speculation_of(names).mode,
        "memory.limit": settings.memory.limit,
        "memory.activation_reserve": settings.memory.activation_reserve,
    }


def without_names(value: Any) -> Any:
    """`value` with every path in its texts replaced, and the names of the user and the machine."""
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
