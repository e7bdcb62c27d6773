"""The report of a stress test. It is on the disk before a phase begins: a Mac that reboots leaves
it unfinished."""

import fcntl
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from omlx_server.doctor.finding import Finding, Level, warn
from omlx_server.doctor.stress.phase import PhaseFigures, finding_of

PLACE = "~/.local/state/omlx_server/stress.json"
_CLOCK_SECONDS = 60  # by which the time of the boot may differ when the clock is set
_FIX = "docs/trouble.md, My Mac rebooted; send {file} with an issue, and remove it"


class StressReport:
    """The report so far. `head` is of `shareable`, without checks. The first of `files` is where
    the doctor looks for an unfinished one."""

    def __init__(self, files: Sequence[Path], head: Mapping[str, Any]) -> None:
        before = unfinished(files[0])
        self._files = files
        self._document = {
            **head,
            "checks": [],
            "pid": os.getpid(),
            "boot_time": int(psutil.boot_time()),
            "test_before": before.says if before else None,
        }

    def add(self, phase: str, figures: PhaseFigures) -> Finding:
        finding = finding_of(phase, figures)
        self._document["ok"] &= finding.level is not Level.FAIL
        self._document["checks"].append({**asdict(finding), "figures": figures.as_json()})
        return finding

    def write(self, phase: str | None, *, interrupted: bool = False) -> Mapping[str, Any]:
        """Write and return the report; `phase` begins now, None is the end."""
        self._document |= {"phase": phase, "interrupted": interrupted}
        for file in self._files:
            _save(self._document, file)
        return self._document


def _save(document: Mapping[str, Any], file: Path) -> None:
    """Replace the file, and wait until it is on the disk."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = file.with_name(f"{file.name}.new")
    with beside.open("w", encoding="utf-8") as out:
        out.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        out.flush()
        os.fsync(out.fileno())
    beside.replace(file)
    directory = os.open(file.parent, os.O_RDONLY)
    os.fsync(directory)
    if sys.platform == "darwin":  # where fsync leaves data in the drive's cache
        fcntl.fcntl(directory, fcntl.F_FULLFSYNC)
    os.close(directory)


def unfinished(file: Path) -> Finding | None:
    """Return the finding on a test that neither finished nor still runs."""
    try:
        report = json.loads(file.read_bytes())
        phase, pid = report["phase"], report["pid"]
        rebooted = abs(psutil.boot_time() - report["boot_time"]) > _CLOCK_SECONDS
        if phase is None or (psutil.pid_exists(pid) and not rebooted):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    end = "the machine has rebooted since" if rebooted else "its process was killed"
    says = f"the last stress test did not finish: it was in phase {phase}; {end}"
    return warn("stress", says, _FIX.format(file=file))
