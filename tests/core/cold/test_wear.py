"""The bytes of a day: who may write until when, and what a date that jumps does."""

from omlx_server.core.cold.wear import SAVED_BYTES, DailyWrites, WriteCause

DAY = 739_000
ALL = list(WriteCause)


def allowed(writes: DailyWrites, nbytes: int = 1) -> list[WriteCause]:
    return [cause for cause in ALL if writes.allows(nbytes, cause)]


def spent(nbytes: int, limit: int = 800) -> DailyWrites:
    writes = DailyWrites(limit)
    writes.begin(DAY)
    writes.spend(nbytes)
    return writes


def test_what_came_once_has_a_quarter_and_the_end_has_an_eighth_for_itself() -> None:
    assert allowed(spent(199)) == ALL
    assert allowed(spent(200)) == ALL[1:]
    assert allowed(spent(699)) == ALL[1:]
    assert allowed(spent(700)) == ALL[2:]
    assert allowed(spent(799)) == ALL[2:]
    assert allowed(spent(800)) == []
    assert allowed(spent(0), 801) == []


def test_without_a_limit_all_are_written() -> None:
    assert allowed(spent(10**15, limit=0), 10**12) == ALL


def test_the_next_day_begins_anew() -> None:
    writes = spent(800)
    writes.is_told = True
    writes.begin(DAY + 1)
    assert allowed(writes) == ALL and not writes.is_told


def test_a_clock_that_goes_back_and_forth_frees_nothing() -> None:
    writes = spent(800)
    for day in (DAY - 1, DAY, DAY - 1, DAY):
        writes.begin(day)
        assert allowed(writes) == []
    writes.begin(DAY + 1)
    assert allowed(writes) == ALL


def test_a_clock_that_was_years_ahead_holds_nobody_up_for_years() -> None:
    writes = DailyWrites(800)
    writes.begin(DAY + 20_000)
    writes.spend(800)
    writes.begin(DAY)
    assert allowed(writes) == []
    writes.begin(DAY + 1)
    assert allowed(writes) == ALL


def test_bytes_of_an_earlier_process_count_on_their_day_only() -> None:
    for day, nbytes in ((DAY, 100 + 700), (DAY - 1, 100), (0, 100)):
        writes = spent(100)
        writes.resume(day, 700)
        assert writes.nbytes == nbytes
    new = DailyWrites(800)
    new.resume(DAY, 700)
    new.begin(DAY)
    assert new.nbytes == 700


def test_it_is_saved_seldom_and_at_the_end() -> None:
    writes = DailyWrites()
    assert not writes.take_save(ends=True), "nothing was written"
    writes.spend(SAVED_BYTES)
    assert not writes.take_save()
    writes.spend(1)
    assert writes.take_save() and not writes.take_save(ends=True)
    writes.spend(1)
    assert not writes.take_save() and writes.take_save(ends=True)
    small = spent(50, limit=800)
    assert not small.take_save()
    small.spend(1)
    assert small.take_save()


def test_a_second_scan_does_not_count_an_earlier_process_twice() -> None:
    writes = DailyWrites(limit=100)
    writes.begin(DAY)
    writes.resume(DAY, 60)
    writes.spend(5)
    writes.resume(DAY, 62)
    assert writes.nbytes == 67
