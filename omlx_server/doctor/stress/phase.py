"""The figures of a phase of the stress test, and the finding on them."""

import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from omlx_server.doctor.finding import Finding, fail, in_words, ok, warn

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
