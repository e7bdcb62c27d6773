"""Reads the memory of the machine or container. Reads may block: call it on a worker thread."""

import ctypes
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from omlx_server.core.memory.pressure import MachineReading, PressureLevel

_LIBC = ctypes.CDLL(None)
_MAC_LEVELS = {1: PressureLevel.NORMAL, 2: PressureLevel.WARN, 4: PressureLevel.CRITICAL}
# Pages that macOS can give away at once: file-backed ones hold those that were read ahead.
_MAC_PAGES = ("vm.page_free_count", "vm.page_purgeable_count", "vm.page_pageable_external_count")


def read_machine(root: Path = Path("/")) -> MachineReading:
    """Return the memory of this machine. `root` has Linux's /proc and /sys."""
    return read_mac(_sysctl) if sys.platform == "darwin" else _read_linux(root)


def read_mac(number: Callable[[str], int | None]) -> MachineReading:
    """Return the memory by the system's numbers, None for those it does not have."""
    level, page = number("kern.memorystatus_vm_pressure_level"), number("vm.pagesize")
    counts = [count for name in _MAC_PAGES if (count := number(name)) is not None]
    is_known = page is not None and len(counts) == len(_MAC_PAGES)
    available = sum(counts) * (page or 0) if is_known else None
    return MachineReading(number("hw.memsize"), available, _MAC_LEVELS.get(level or 0))


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
    for group in _groups(root):
        limit, left = _group_bytes(group)
        if limit < total and left < available:
            total, available, waiting = int(limit), left, group / "memory.pressure"
    return MachineReading(total, available, None, *_waiting_shares(waiting))


def _groups(root: Path) -> Iterator[Path]:
    """Yield the directories of this process's memory groups, from the inmost on."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = top / path.strip("/")
        yield group
        while group != top:  # in a container they may be out of sight
            group = group.parent
            yield group


def _group_bytes(group: Path) -> tuple[float, int]:
    """Return a group's limit, infinite for none, and what it may still use. The first version of
    groups has other names, and counts inner groups as `total`."""
    limit = _text(group / "memory.max") or _text(group / "memory.limit_in_bytes")
    used = _text(group / "memory.current") or _text(group / "memory.usage_in_bytes")
    if not (limit.strip().isdigit() and used.strip().isdigit()):
        return math.inf, 0
    stat = _numbers(group / "memory.stat")
    inactive, active = (
        stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file")
    )
    # Pages of files count as used; the kernel takes them back, but not all that are active.
    used_bytes = max(0, int(used) - inactive - active // 2)
    return int(limit), max(0, int(limit) - used_bytes)


def _waiting_shares(path: Path) -> tuple[float, float]:
    shares = dict(re.findall(r"^(some|full) avg10=([\d.]+)", _text(path), re.MULTILINE))
    return float(shares.get("some", 0)), float(shares.get("full", 0))


def _numbers(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"(\w+):?\s+(\d+)", _text(path))}


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""
