"""What is read of a machine's memory: files of Linux as they are found, and a Mac's numbers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omlx_server.compute.hardware.machine import read_mac, read_machine
from omlx_server.core.memory.pressure import MachineReading, PressureLevel

GB, MB = 1 << 30, 1 << 20
WAITS = (
    "some avg10={} avg60=0.00 avg300=0.00 total=8\nfull avg10={} avg60=0.00 avg300=0.00 total=2\n"
)


def tree(root: Path, **files: str) -> Path:
    """A root with these files; two underscores part folders, and `X` is a dot."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("X", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(root: Path, group: str) -> Path:
    """A machine of 16 GB, and the group that its process is in."""
    info = f"MemTotal: {16 * 1024**2} kB\nMemFree: 1 kB\nMemAvailable: {6 * 1024**2} kB\n"
    waits = WAITS.format("12.50", "3.25")
    return tree(
        root, proc__meminfo=info, proc__pressure__memory=waits, proc__self__cgroup=f"{group}\n"
    )


def group_v2(limit: str, used: int, inactive: int = 0, active: int = 0) -> dict[str, str]:
    stat = f"anon 7\ninactive_file {inactive}\nactive_file {active}\n"
    return {
        "memoryXmax": f"{limit}\n",
        "memoryXcurrent": f"{used}\n",
        "memoryXstat": stat,
        "memoryXpressure": WAITS.format("40.00", "20.00"),
    }


def below(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"sys__fs__cgroup__{folder}{name}": text for name, text in files.items()}


def test_without_a_group_the_machine_counts(tmp_path: Path) -> None:
    reading = read_machine(machine(tmp_path, "0::/"))
    assert reading == MachineReading(16 * GB, 6 * GB, None, 12.5, 3.25)


def test_a_group_without_a_limit_is_none(tmp_path: Path) -> None:
    root = tree(machine(tmp_path, "0::/app"), **below("app__", group_v2("max", 15 * GB)))
    assert read_machine(root).total == 16 * GB


def test_a_container_has_what_its_limit_leaves_and_files_pages(tmp_path: Path) -> None:
    files = group_v2(str(4 * GB), 3 * GB, inactive=512 * MB, active=256 * MB)
    root = tree(machine(tmp_path, "0::/"), **below("", files))
    assert read_machine(root) == MachineReading(4 * GB, GB + 640 * MB, None, 40.0, 20.0)


def test_the_limit_of_an_outer_group_counts_too(tmp_path: Path) -> None:
    outer, inner = group_v2(str(4 * GB), 3 * GB), group_v2(str(8 * GB), GB)
    root = machine(tmp_path, "0::/outer/inner")
    tree(root, **below("outer__", outer), **below("outer__inner__", inner))
    reading = read_machine(root)
    assert (reading.total, reading.available) == (4 * GB, GB)


def test_a_machine_with_less_than_the_group_counts_itself(tmp_path: Path) -> None:
    root = tree(machine(tmp_path, "0::/"), **below("", group_v2(str(8 * GB), GB)))
    reading = read_machine(root)
    assert (reading.total, reading.available, reading.some) == (16 * GB, 6 * GB, 12.5)


def test_groups_of_the_first_version(tmp_path: Path) -> None:
    files = {
        "memoryXlimit_in_bytes": str(2 * GB),
        "memoryXusage_in_bytes": str(GB),
        "memoryXstat": f"inactive_file 5\ntotal_inactive_file {256 * MB}\n",
    }
    root = machine(tmp_path, "5:devices:/x\n4:memory:/docker/app\n1:cpu,cpuacct:/")
    tree(root, **below("memory__", files))  # a container does not see /docker/app
    assert read_machine(root) == MachineReading(2 * GB, GB + 256 * MB)


def test_what_is_not_there_is_unknown(tmp_path: Path) -> None:
    assert read_machine(tmp_path) == MachineReading()
    tree(tmp_path, proc__meminfo="MemTotal: 5 kB\n", proc__self__cgroup="0::/gone\n")
    assert read_machine(tmp_path) == MachineReading()


@pytest.mark.parametrize(
    ("level", "expected"),
    [(1, PressureLevel.NORMAL), (2, PressureLevel.WARN), (4, PressureLevel.CRITICAL), (None, None)],
)
def test_a_mac_tells_its_level_and_pages(level: int | None, expected: PressureLevel | None) -> None:
    numbers = {
        "hw.memsize": 16 * GB,
        "kern.memorystatus_vm_pressure_level": level,
        "vm.pagesize": 16384,
        "vm.page_free_count": 1000,
        "vm.page_purgeable_count": 20,
        "vm.page_pageable_external_count": 3000,
    }
    assert read_mac(numbers.get) == MachineReading(16 * GB, 4020 * 16384, expected)
    for missing in ("vm.pagesize", "vm.page_purgeable_count"):
        assert read_mac({**numbers, missing: None}.get).available is None


def test_this_machine_has_memory() -> None:
    reading = read_machine()
    assert reading.total and reading.available and 0 < reading.available < reading.total


READS = "from omlx_server.compute.hardware.machine import read_machine; r = read_machine()"


def test_the_limit_of_a_real_group(tmp_path: Path) -> None:
    """In a group of 512 MB, before and after 200 MB are taken there."""
    group = Path("/sys/fs/cgroup/memory") / f"omlx-{os.getpid()}"
    if sys.platform != "linux" or not os.access(group.parent / "cgroup.procs", os.W_OK):
        pytest.skip("memory groups can't be made here")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(512 * MB))
        enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0'); {READS}"
        take = "held = bytearray(b'1') * (200 << 20); s = read_machine()"
        program = f"{enter}; {take}; print(r.total, r.available, s.available)"
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        group.rmdir()
    total, before, after = map(int, done.stdout.split())
    assert total == 512 * MB
    assert 190 * MB < before - after < 230 * MB
