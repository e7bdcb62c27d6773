"""The machine's pressure by series of readings: when it rises and ends, and what is given up."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, repeat

import pytest

from omlx_server.core.memory.ledger import Ledger, hot_floor_bytes
from omlx_server.core.memory.pressure import (
    MachineReading,
    MemoryPressure,
    PressureGauge,
    PressureLevel,
    level_of,
    short_bytes,
)

NORMAL, WARN, CRITICAL = PressureLevel
GB = 10**9
MB = 10**6
TOTAL = 16 * GB
SHORT = 800 * MB
LEDGER = Ledger(12 * GB, weights=4 * GB, live=GB, blocks=3 * GB)


def linux(available: float, some: float = 0.0, full: float = 0.0) -> MachineReading:
    return MachineReading(TOTAL, int(available), None, some, full)


def mac(level: PressureLevel, available: int | None = 3 * GB) -> MachineReading:
    return MachineReading(TOTAL, available, level)


def levels(readings: Iterable[MachineReading], gauge: PressureGauge | None = None) -> list[int]:
    """The level in force after each reading, one a second."""
    gauge = gauge or PressureGauge()
    return [int(gauge.note(one, LEDGER, float(at)).level) for at, one in enumerate(readings)]


def lengths(values: Iterable[int]) -> list[tuple[int, int]]:
    """Each level and how many readings it lasted."""
    spans: list[tuple[int, int]] = []
    for value in values:
        before = spans.pop() if spans and spans[-1][0] == value else (value, 0)
        spans.append((value, before[1] + 1))
    return spans


# -- one reading -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reading", "current", "expected"),
    [
        (linux(SHORT), NORMAL, NORMAL),
        (linux(SHORT - 1), NORMAL, WARN),
        (linux(SHORT / 2 - 1), NORMAL, CRITICAL),
        (linux(1.5 * SHORT - 1), WARN, WARN),
        (linux(1.5 * SHORT), WARN, NORMAL),
        (linux(0.75 * SHORT - 1), CRITICAL, CRITICAL),
        (linux(0.75 * SHORT), CRITICAL, WARN),
        (linux(2 * SHORT, some=10), NORMAL, WARN),
        (linux(2 * SHORT, some=80, full=10), NORMAL, CRITICAL),
        (linux(8 * GB, some=80, full=80), NORMAL, NORMAL),
        (mac(WARN), NORMAL, WARN),
        (mac(CRITICAL, None), NORMAL, CRITICAL),
        (mac(NORMAL, 100 * MB), CRITICAL, NORMAL),
        (MachineReading(), CRITICAL, NORMAL),
    ],
)
def test_the_level_of_a_reading(
    reading: MachineReading, current: PressureLevel, expected: PressureLevel
) -> None:
    """macOS judges by itself. Waiting counts only where memory is scarce."""
    assert level_of(reading, current) is expected


def test_a_large_machine_is_short_at_two_gigabytes() -> None:
    assert [short_bytes(ram * GB) for ram in (2, 16, 64, 512)] == [
        100 * MB, 800 * MB, 2 * GB, 2 * GB,
    ]  # fmt: skip


# -- readings in time --------------------------------------------------------------------


def test_it_rises_with_the_second_reading_and_falls_level_by_level() -> None:
    series = [mac(NORMAL)] * 3 + [mac(CRITICAL)] * 5 + [mac(NORMAL)] * 30
    assert lengths(levels(series)) == [(0, 4), (2, 13), (1, 10), (0, 11)]


def test_a_pressure_does_not_last_longer_than_what_it_comes_from() -> None:
    """Nothing that was read before keeps it."""
    for level in (WARN, CRITICAL):
        gauge = PressureGauge()
        series = [mac(level)] * 600 + [mac(NORMAL)] * 100
        assert levels(series, gauge)[-1] == 0
        assert gauge.pressure.taken == 0


@pytest.mark.parametrize("other", [WARN, CRITICAL])
def test_single_high_readings_change_nothing(other: PressureLevel) -> None:
    assert set(levels([mac(NORMAL), mac(other)] * 100)) == {0}


def test_readings_that_flap_keep_the_level_that_was_reached() -> None:
    gauge = PressureGauge()
    series = [mac(CRITICAL)] * 2 + [mac(NORMAL), mac(CRITICAL)] * 100
    assert lengths(levels(series, gauge)) == [(0, 1), (2, 201)]
    assert lengths(levels(around(SHORT), PressureGauge())) == [(0, 1), (1, 199)]


def around(mark: int) -> Iterator[MachineReading]:
    for at in range(200):
        yield linux(mark * (0.8 if at < 2 else 0.95 + 0.2 * (at % 3)))


def test_a_reader_that_fails_ends_a_pressure() -> None:
    gauge = PressureGauge()
    series = [mac(CRITICAL)] * 30 + [MachineReading()] * 100
    assert levels(series, gauge)[-1] == 0 and gauge.pressure.taken == 0


# -- what is given up --------------------------------------------------------------------


@dataclass
class Machine:
    """One whose other programs hold `others` bytes, and a server that fills its hot tier by `rate`
    bytes a second."""

    others: int
    hot: int = 0
    rate: int = GB // 2
    weights: int = 4 * GB
    limit: int = 12 * GB
    by_system: bool = False
    now: float = 0.0

    def __post_init__(self) -> None:
        self.gauge = PressureGauge()

    @property
    def available(self) -> int:
        return TOTAL - self.others - self.weights - self.hot

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.limit, weights=self.weights, blocks=self.hot)

    def second(self) -> MemoryPressure:
        self.now += 1
        reading = linux(max(0, self.available))
        if self.by_system:
            reading = replace(reading, level=level_of(reading, NORMAL))
        pressure = self.gauge.note(reading, self.ledger, self.now)
        most = self.limit - self.weights - pressure.taken
        self.hot = min(self.hot + self.rate, most)
        return pressure

    def run(self, seconds: int) -> list[MemoryPressure]:
        return [self.second() for _ in range(seconds)]


def test_the_hot_tier_gives_up_what_is_missing_and_no_more() -> None:
    machine = Machine(others=2 * GB, hot=6 * GB, rate=0)
    machine.run(5)
    machine.others += int(3.5 * GB)
    pressures = machine.run(20)
    lacking = 4 * GB + 6 * GB + int(5.5 * GB) + int(1.5 * SHORT) - TOTAL
    assert lacking <= 6 * GB - machine.hot <= lacking + TOTAL // 64 + 1
    assert pressures[-1].taken == 12 * GB - 4 * GB - machine.hot
    assert pressures[-1].level is NORMAL, "it has enough again"


def test_it_never_gives_up_more_than_the_hot_tier_can() -> None:
    machine = Machine(others=40 * GB, hot=8 * GB)
    pressures = machine.run(60)
    assert pressures[-1].is_critical
    assert pressures[-1].taken == 8 * GB - hot_floor_bytes(8 * GB)
    machine.weights = 13 * GB
    assert machine.second().taken == 0, "weights are no part of it"


@pytest.mark.parametrize("by_system", [False, True])
@pytest.mark.parametrize("eaten", [3, 5, 7, 9])
def test_memory_that_comes_back_is_used_again(eaten: int, by_system: bool) -> None:
    machine = Machine(others=2 * GB, hot=8 * GB, by_system=by_system)
    machine.run(60)
    hot = machine.hot
    machine.others += eaten * GB
    machine.run(120)
    assert machine.hot < hot
    assert machine.available >= min(SHORT, TOTAL - machine.others - int(4.4 * GB)) - TOTAL // 64
    machine.others -= eaten * GB
    machine.run(120)
    assert machine.hot == hot and machine.gauge.pressure.is_none


def test_a_machine_that_stays_full_is_not_tried_again_and_again() -> None:
    """The tier fills what is given back. By the bytes, nothing is that would be missing."""
    machine = Machine(others=7 * GB, hot=5 * GB)
    pressures = machine.run(3600)
    assert rises(pressures) == 1
    assert all(pressure.taken == pressures[-1].taken for pressure in pressures[60:])
    assert pressures[-1].taken > 0 and machine.available >= 1.5 * SHORT - TOTAL // 64


def test_where_only_the_system_judges_each_try_comes_later_than_the_one_before() -> None:
    machine = Machine(others=7 * GB, hot=5 * GB, by_system=True)
    pressures = machine.run(3600)
    assert 1 < rises(pressures) <= 20
    assert rises(pressures[1800:]) <= 6
    assert not any(pressure.is_critical for pressure in pressures[60:])


def rises(pressures: list[MemoryPressure]) -> int:
    before = [NORMAL, *[pressure.level for pressure in pressures]]
    return sum(new > old for old, new in pairwise(before))


def test_what_was_given_up_is_not_asked_for_twice_before_it_shows() -> None:
    """Freed memory shows in the machine's numbers a second or two later."""
    gauge, reading = PressureGauge(), linux(SHORT / 4)
    taken = [gauge.note(one, LEDGER, at).taken for at, one in enumerate(repeat(reading, 4))]
    first = 12 * GB - LEDGER.held + SHORT * 5 // 4
    assert taken == [0, first, first, first]
    smaller = replace(LEDGER, blocks=LEDGER.blocks - SHORT)
    assert gauge.note(reading, smaller, 4).taken == first + SHORT


@pytest.mark.parametrize("name", ["compile", "browser"])
def test_a_recorded_series(name: str) -> None:
    """Available MB of machines of 16 GB, one reading in five seconds: a compiler that comes and
    goes, and a browser that grows slowly and is closed."""
    recorded = {
        "compile": [4100] * 6 + [2600, 1500, 700, 350, 300, 320, 900, 650, 2900] + [4000] * 12,
        "browser": [*range(3000, 700, -100), *[690, 640, 700, 660, 720], *[3500] * 12],
    }[name]
    gauge = PressureGauge()
    series = [linux(mb * MB) for mb in recorded for _ in range(5)]
    spans = lengths(levels(series, gauge))
    assert [level for level, _ in spans] == {
        "compile": [0, 1, 2, 1, 0], "browser": [0, 1, 0],
    }[name]  # fmt: skip
    unused = LEDGER.limit - LEDGER.held - gauge.pressure.taken
    assert unused == (recorded[-1] - 1200) * MB, "the tier may grow by what is there"
