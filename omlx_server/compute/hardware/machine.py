"""The RAM of the machine or the container, in bytes. Any thread."""

from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def ram_bytes() -> int:
    total = int(psutil.virtual_memory().total)
    return min([total, *filter(None, map(_cgroup_limit, _CGROUP_LIMITS))])


def _cgroup_limit(path: str) -> int | None:
    with suppress(OSError, ValueError):
        return int(Path(path).read_text())
    return None
