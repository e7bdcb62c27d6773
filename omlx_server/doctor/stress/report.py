"""The figures of a stress test's phases, the findings on them, and the report. It is on the disk
before a phase begins: a Mac that reboots leaves it unfinished."""

import fcntl
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil

from omlx_server.doctor.finding import Finding, Level, fail, in_words, ok, warn
from omlx_server.settings.whole_file import PRIVATE_DIRECTORY, replacing

PLACE = "~/.local/state/omlx_server/stress.json"
_MODE = 0o644
_CLOCK_SECONDS = 60  # by which the time of the boot may differ when the clock is set
_FIX = "docs/trouble.md, My Mac rebooted; send {file} with an issue, and remove it"
_REPORT = "send the report with an issue; docs/trouble.md, My Mac rebooted"


@dataclass(slots=True)
class PhaseFigures:
    """Counts of one phase; its sizes are the largest, in bytes."""

    seconds: float = 0.0
    requests: int = 0  # that were answered
    tokens: int = 0  # of prompts and answers
    longest_prompt: int = 0  # tokens
    different: int = 0  # answers unlike the first one to the same prompt
    unfinished: int = 0  # requests that the end of the phase ended
    refused: Counter[str] = field(default_factory=Counter)  # for want of memory, by code
    errors: Counter[str] = field(default_factory=Counter)  # by code
    peak_bytes: int = 0  # of the server's account
    resident_bytes: int = 0
    taken_bytes: int = 0  # by the other program
    evictions: int = 0
    device_errors: int = 0
    stalls: int = 0
    exit_code: int | None = None  # of the server, if it ended; minus a signal
    is_ready: bool = True  # at the end

    @property
    def survived(self) -> bool:
        return self.exit_code is None and self.is_ready

    @property
    def counts(self) -> str:
        tokens = f"{self.requests} answers, {self.tokens:,} tokens"
        return f"{tokens}, at most {in_words(self.peak_bytes)}"

    @property
    def fault(self) -> str:
        """The fault in words; empty if there is none."""
        if self.exit_code is not None:
            end = f"exit code {self.exit_code}"
            with suppress(ValueError):
                end = signal.Signals(-self.exit_code).name
            return f"the server ended ({end})"
        if not self.is_ready:
            return "the server does not answer any more"
        faults = self.errors + Counter(device_error=self.device_errors, stall=self.stalls)
        return _listed(+faults)

    def as_json(self) -> dict[str, Any]:
        figures = {item.name: getattr(self, item.name) for item in fields(self)}
        return {"survived": self.survived, **figures}


def finding_of(phase: str, figures: PhaseFigures) -> Finding:
    says = f"{figures.seconds:.0f} s, {figures.counts}, {figures.evictions} evictions"
    if fault := figures.fault:
        return fail(phase, f"{fault}; {says}", _REPORT)
    if figures.different:
        what = f"{figures.different} answers differ from the first one to the same prompt"
        fix = "rounding may do this; omlx-server doctor --model NAME tells whether it did"
        return warn(phase, f"{what}; {says}", fix)
    if figures.refused:
        refusals = f"refused: {_listed(figures.refused)}; {says}"
        return warn(phase, refusals, "a smaller model, or a lower memory.limit")
    if not figures.requests:
        return warn(phase, f"no answer came in time; {says}", "more minutes")
    return ok(phase, f"survived {says}")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{code} {count}" for code, count in counts.items())


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
    file.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    with replacing(file, _MODE) as out:
        out.write(json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")
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
