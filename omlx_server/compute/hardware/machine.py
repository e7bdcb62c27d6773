"""Reads the memory of the machine or container. Reads may block: call it on a worker thread."""

import ctypes
import math
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from omlx_server.core.memory.pressure import MachineReading, PressureLevel

_LIBC = ctypes.CDLL(None)
_MAC_LEVELS = {1: PressureLevel.NORMAL, 2: PressureLevel.WARN, 4: PressureLevel.CRITICAL}
# Pages that macOS can give away at once: file-backed ones hold those that were read ahead.
_MAC_PAGES = ("free_count", "purgeable_count", "pageable_external_count")


class _Names(NamedTuple):
    """The files of a control group, and the lines of its memory.stat."""

    limit: str
    used: str
    inactive: str
    active: str
    waiting: str = "memory.pressure"


_V2 = _Names("memory.max", "memory.current", "inactive_file", "active_file")
_V1 = _Names(
    "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"
)


def read_machine(root: Path = Path("/")) -> MachineReading:
    """Return the memory of this machine. `root` has Linux's /proc and /sys."""
    return _read_mac() if sys.platform == "darwin" else _read_linux(root)


def _read_mac() -> MachineReading:
    pages = [_sysctl(f"vm.page_{name}") for name in _MAC_PAGES]
    return mac_reading(
        _sysctl("hw.memsize"),
        _sysctl("kern.memorystatus_vm_pressure_level"),
        _sysctl("vm.pagesize"),
        pages,
    )


def mac_reading(
    total: int | None, level: int | None, page: int | None, pages: list[int | None]
) -> MachineReading:
    known_pages = [count for count in pages if count is not None]
    is_known = page is not None and len(known_pages) == len(pages)
    available = sum(known_pages) * page if page is not None and is_known else None
    return MachineReading(total, available, _MAC_LEVELS.get(level or 0))


def _sysctl(name: str) -> int | None:
    value = ctypes.c_uint64(0)  # the kernel writes four or eight of its bytes
    size = ctypes.c_size_t(ctypes.sizeof(value))
    failed = _LIBC.sysctlbyname(
        name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return None if failed else int(value.value)


def _read_linux(root: Path) -> MachineReading:
    """Return the reading of the machine or of the control group that has the least left."""
    info = _numbers(root / "proc/meminfo")
    if not {"MemTotal", "MemAvailable"} <= info.keys():
        return MachineReading()
    total, available = info["MemTotal"] * 1024, info["MemAvailable"] * 1024
    waiting = root / "proc/pressure/memory"
    for group, names in _groups(root):
        limit, left = _group_bytes(group, names)
        if limit < total and left < available:
            total, available, waiting = int(limit), left, group / names.waiting
    return MachineReading(total, available, None, *_waiting_shares(waiting))


def _groups(root: Path) -> Iterator[tuple[Path, _Names]]:
    """Yield the directories of this process's memory groups, from the inmost on."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        is_v1 = "memory" in controllers.split(",")
        if controllers and not is_v1:
            continue
        top = root / "sys/fs/cgroup" / ("memory" if is_v1 else "")
        group = top / path.strip("/")
        yield group, _V1 if is_v1 else _V2
        while group != top:  # in a container they may be out of sight
            group = group.parent
            yield group, _V1 if is_v1 else _V2


def _group_bytes(group: Path, names: _Names) -> tuple[float, int]:
    """Return a group's limit, infinite for none, and what it may still use."""
    limit, used = _text(group / names.limit).strip(), _text(group / names.used).strip()
    if not (limit.isdigit() and used.isdigit()):
        return math.inf, 0
    stat = _numbers(group / "memory.stat")
    # Pages of files count as used; the kernel takes them back, but not all that are active.
    files = stat.get(names.inactive, 0) + stat.get(names.active, 0) // 2
    return int(limit), max(0, int(limit) - max(0, int(used) - files))


def _waiting_shares(path: Path) -> tuple[float, float]:
    shares = dict(re.findall(r"^(some|full) avg10=([\d.]+)", _text(path), re.MULTILINE))
    return float(shares.get("some", 0)), float(shares.get("full", 0))


def _numbers(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"(\w+):?\s+(\d+)", _text(path))}


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""
