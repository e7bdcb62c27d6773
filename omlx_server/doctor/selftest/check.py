"""The result of a check of the self-test, and the extent of the test."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from omlx_server.doctor.finding import Finding

Figures = Mapping[str, Any]
"""Counts and measurements by name: numbers, texts without a path, and lists of these."""

Beat = Callable[[int, int], None]
"""Reports the progress of a check: the part that is done, and the whole."""


@dataclass(frozen=True, slots=True)
class Check:
    """A finding for people, and the figures behind it for the JSON."""

    finding: Finding
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelftestPlan:
    """The extent of the test. Lengths are in tokens."""

    base: int = 1600  # prompt whose blocks later prompts hit
    hits: int = 12  # prompts that begin as it does
    rows: int = 8  # rows that decode together
    row: int = 600  # longest prompt of these
    answer: int = 24  # answer that is compared
    contexts: tuple[int, ...] = (0, 1024)  # before the forwards whose memory is measured
    chunks: int = 4  # chunks of the prompt whose time is measured
    decoded: int = 96  # answer that is timed
    rounds: int = 3  # measurements of each speed; the best one counts
    seconds: float = 60.0  # time after which only the first three hits are asked for


QUICK = SelftestPlan(
    base=400,
    hits=4,
    rows=4,
    row=160,
    answer=12,
    contexts=(0,),
    chunks=2,
    decoded=24,
    rounds=2,
    seconds=4.0,
)
FEWEST_HITS = 3
REPORT = "write the report with --share FILE and open an issue with it"
