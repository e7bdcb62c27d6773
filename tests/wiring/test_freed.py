"""When memory that was freed goes back to the system."""

import pytest

from omlx_server.compute.hardware import heap
from omlx_server.wiring.freed import GROWN, GROWN_AT_WORK, Freed

BASE = 400 << 20


class Process:
    """`used` bytes are in use, the others of `resident` were freed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resident = self.used = BASE
        self.times = 0
        monkeypatch.setattr(heap, "resident_bytes", lambda: self.resident)
        monkeypatch.setattr(heap, "return_freed", self.give_back)
        self.freed = Freed(lambda: True)

    def give_back(self) -> None:
        self.times += 1
        self.resident = self.used

    def look(self, *, is_idle: bool) -> bool:
        """Whether it gave something back."""
        before = self.times
        self.freed.look(is_idle=is_idle)
        return self.times > before


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


@pytest.mark.parametrize(
    ("grown", "is_idle", "gives"),
    [
        (GROWN - 1, True, False),
        (GROWN, True, True),
        (GROWN, False, False),
        (GROWN_AT_WORK - 1, False, False),
        (GROWN_AT_WORK, False, True),
    ],
)
def test_it_follows_from_how_much_the_process_has_grown(
    process: Process, grown: int, is_idle: bool, gives: bool
) -> None:
    process.resident += grown
    assert process.look(is_idle=is_idle) == gives
    assert process.resident == (BASE if gives else BASE + grown)


def test_what_is_needed_is_not_asked_for_again(process: Process) -> None:
    process.resident = process.used = BASE + GROWN
    assert process.look(is_idle=True) and not process.look(is_idle=True)
    process.resident += GROWN
    assert process.look(is_idle=True)


def test_what_was_in_use_at_work_goes_back_when_it_is_over(process: Process) -> None:
    process.resident = process.used = BASE + GROWN_AT_WORK
    assert process.look(is_idle=False) and not process.look(is_idle=False)
    process.used = BASE
    assert process.look(is_idle=True)
    assert process.resident == BASE


def test_who_has_shrunk_is_measured_from_there(process: Process) -> None:
    process.resident = process.used = BASE - GROWN
    assert not process.look(is_idle=True)
    process.resident = BASE
    assert process.look(is_idle=True)
