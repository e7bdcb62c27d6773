"""How much RAM there is for all processes of the machine or the container. Any thread."""

from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def ram_bytes() -> int:
    """Bytes of the machine's RAM, or of the container's limit where that is lower."""
    total = int(psutil.virtual_memory().total)
    return min([total, *filter(None, map(_cgroup_limit, _CGROUP_LIMITS))])


def _cgroup_limit(path: str) -> int | None:
    """The limit in bytes; None where there is no such file, or "max" in it. (Version 1 of cgroups
    says a number beyond any RAM where there is no limit.)"""
    with suppress(OSError, ValueError):
        return int(Path(path).read_text())
    return None
