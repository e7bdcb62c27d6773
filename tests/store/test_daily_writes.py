"""The bytes of a day: who may write until when, and what a date that jumps does."""

from omlx_server.core.cold.index import WriteCause
from omlx_server.store.written import SAVED_BYTES, WrittenToday, written_of_bytes

DAY = 739_000
ALL = list(WriteCause)


class Calendar:
    """A count of bytes on a day that may change, and what it saved."""

    def __init__(self, limit: int = 800, nbytes: int = 0, day: int = DAY) -> None:
        self.day = day
        self.saves = list[bytes]()
        self.writes = WrittenToday(limit, lambda: self.day, self.saves.append)
        if nbytes:
            self.writes.add(nbytes)

    def allowed(self, nbytes: int = 1) -> list[WriteCause]:
        return [cause for cause in ALL if self.writes.allows(nbytes, cause)]

    def on(self, day: int) -> list[WriteCause]:
        self.day = day
        return self.allowed()


def spent(nbytes: int) -> list[WriteCause]:
    return Calendar(nbytes=nbytes).allowed()


def test_what_came_once_has_a_quarter_and_the_end_has_an_eighth_for_itself() -> None:
    assert spent(199) == ALL
    assert spent(200) == spent(699) == ALL[1:]
    assert spent(700) == spent(799) == ALL[2:]
    assert spent(800) == []
    assert Calendar().allowed(801) == []


def test_without_a_limit_all_are_written() -> None:
    assert Calendar(limit=0, nbytes=10**15).allowed(10**12) == ALL


def test_the_next_day_begins_anew() -> None:
    assert Calendar(nbytes=800).on(DAY + 1) == ALL


def test_a_clock_that_goes_back_and_forth_frees_nothing() -> None:
    calendar = Calendar(nbytes=800)
    for day in (DAY - 1, DAY, DAY - 1, DAY):
        assert calendar.on(day) == []
    assert calendar.on(DAY + 1) == ALL


def test_a_clock_that_was_years_ahead_holds_nobody_up_for_years() -> None:
    calendar = Calendar(nbytes=800, day=DAY + 20_000)
    assert calendar.on(DAY) == []
    assert calendar.on(DAY + 1) == ALL


def test_bytes_of_an_earlier_process_count_on_their_day_only() -> None:
    for day, nbytes in ((DAY, 100 + 700), (DAY - 1, 100), (0, 100)):
        writes = Calendar(nbytes=100).writes
        writes.resume(day, 700)
        assert writes.count() == nbytes
    new = Calendar().writes
    new.resume(DAY, 700)
    assert new.count() == 700


def test_it_is_saved_seldom_and_at_the_end() -> None:
    calendar = Calendar(limit=0)
    writes, saves = calendar.writes, calendar.saves
    writes.save(ends=True)
    assert not saves, "nothing was written"
    writes.add(SAVED_BYTES)
    assert not saves
    writes.add(1)
    assert list(map(written_of_bytes, saves)) == [(DAY, SAVED_BYTES + 1)]
    writes.save(ends=True)
    writes.add(1)
    assert len(saves) == 1
    writes.save(ends=True)
    assert len(saves) == 2
    small = Calendar(nbytes=50)
    assert not small.saves
    small.writes.add(1)
    assert small.saves


def test_a_second_scan_does_not_count_an_earlier_process_twice() -> None:
    calendar = Calendar(nbytes=5)
    calendar.writes.resume(DAY, 60)
    calendar.writes.resume(DAY, 62)
    assert calendar.writes.count() == 67
