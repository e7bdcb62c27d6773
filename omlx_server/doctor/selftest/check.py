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
    """The extent of the test. Lengths are in tokens.

    base       prompt whose blocks later prompts hit
    hits       prompts that begin as it does
    rows       rows that decode together
    row        longest prompt of these
    answer     answer that is compared
    contexts   before the forwards whose memory is measured
    chunks     chunks of the prompt whose time is measured
    decoded    answer that is timed
    rounds     measurements of each speed; the best one counts
    seconds    time after which only the first three hits are asked for
    """

    base: int = 1600
    hits: int = 12
    rows: int = 8
    row: int = 600
    answer: int = 24
    contexts: tuple[int, ...] = (0, 1024)
    chunks: int = 4
    decoded: int = 96
    rounds: int = 3
    seconds: float = 60.0


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
