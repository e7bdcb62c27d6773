"""Small random crowds by the thousand: `scripts/campaign turns`. In each every request gets its
first token within the time that it was told, and its end (tests/core/crowds.py)."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.core.crowds import small

_AT_ONCE = 200


@dataclass(slots=True)
class Outcome:
    """`runs` that kept the law, and what happened in each that did not, by its seed."""

    runs: int = 0
    broken: dict[int, str] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        return self.runs > 0 and not self.broken

    def __str__(self) -> str:
        kinds = Counter(problem.partition("(")[0] for problem in self.broken.values())
        return f"{self.runs} crowds kept the law, {len(self.broken)} did not: {dict(kinds)}"


def campaign(first: int, count: int, *, say: Callable[[str], None] = lambda line: None) -> Outcome:
    """The crowds of `count` seeds from `first` on, on all processors."""
    outcome = Outcome()
    seeds = range(first, first + count)
    parts = [seeds[start : start + _AT_ONCE] for start in range(0, count, _AT_ONCE)]
    with ProcessPoolExecutor() as workers:
        for number, broken in enumerate(workers.map(_broken, parts)):
            outcome.broken |= broken
            outcome.runs += len(parts[number]) - len(broken)
            for seed, problem in broken.items():
                say(f"seed {seed}: {problem}")
            if (number + 1) % 10 == 0:
                say(str(outcome))
    return outcome


def _broken(seeds: Sequence[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for seed in seeds:
        try:
            small(seed).live()
        except AssertionError as error:
            found[seed] = repr(error)[:200]
    return found
