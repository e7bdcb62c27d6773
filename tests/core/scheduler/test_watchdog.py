"""When a standstill is met, and how: seconds are counted by looks, as the engine makes them."""

from collections.abc import Callable

from omlx_server.core.scheduler.watchdog import Excuse, Stalls, StallVerdict, Watchdog


class Standing:
    """A standstill that is looked at; `now` is the clock of its engine."""

    def __init__(self) -> None:
        self.dog = Watchdog()
        self.now = 1000.0

    def look(self, apart: float = 1.0, excuse: Excuse = Excuse.NONE) -> StallVerdict:
        self.now += apart
        return self.dog.look(self.now, lambda: excuse)

    def until_it_acts(
        self, excuse: Excuse = Excuse.NONE, most: int = 1000
    ) -> tuple[StallVerdict, int] | None:
        """What it does, and after how many looks a second apart; None when it does nothing."""
        for looks in range(1, most):
            verdict = self.look(excuse=excuse)
            if verdict is not StallVerdict.WAIT:
                return verdict, looks
        return None


def test_ten_seconds_without_anything_under_way_are_met_by_a_new_start() -> None:
    standing = Standing()
    assert standing.until_it_acts() == (
        StallVerdict.START_OVER,
        11,
    )  # the first look begins to count
    assert standing.dog.stalled_seconds == 10


def test_whoever_moves_meanwhile_does_not_stand() -> None:
    def interrupted(act: Callable[[Watchdog], None]) -> bool:
        standing = Standing()
        seen = []
        for number in range(100):
            seen.append(standing.look())
            if number % 10 == 9:
                act(standing.dog)
        return set(seen) == {StallVerdict.WAIT}

    assert interrupted(Watchdog.note_progress)
    assert interrupted(Watchdog.note_pause)
    assert interrupted(Watchdog.note_rest)
    assert not interrupted(Watchdog.note_answer)  # of what was launched before


def test_a_machine_that_slept_is_no_standstill() -> None:
    standing = Standing()
    assert [standing.look(apart=40_000.0) for _ in range(5)] == [StallVerdict.WAIT] * 5
    assert standing.look(apart=40_000.0) is StallVerdict.START_OVER  # it was there at each look


def test_a_clock_that_goes_back_counts_nothing() -> None:
    standing = Standing()
    assert {standing.look(apart=-5.0) for _ in range(100)} == {StallVerdict.WAIT}


def test_reads_count_as_under_way_but_not_for_ever() -> None:
    assert Standing().until_it_acts(Excuse.READS) == (StallVerdict.START_OVER, 121)


def test_who_waits_for_the_memory_of_others_waits_as_long_as_they_work() -> None:
    standing = Standing()
    assert standing.until_it_acts(Excuse.OTHERS) is None
    assert standing.until_it_acts() is not None


def test_the_excuse_is_asked_for_only_when_it_matters() -> None:
    dog = Watchdog()

    def never() -> Excuse:
        raise AssertionError

    for second in range(10):
        assert dog.look(float(second), never) is StallVerdict.WAIT


def test_a_new_start_that_moves_nothing_is_not_tried_twice() -> None:
    standing = Standing()
    assert standing.until_it_acts() == (StallVerdict.START_OVER, 11)
    standing.dog.note_pause()  # a model that is loaded does not help them either
    assert standing.until_it_acts() == (StallVerdict.GIVE_UP, 21)  # twice the patience
    assert standing.until_it_acts() == (StallVerdict.START_OVER, 11), "who comes then has it afresh"


def test_new_starts_without_one_token_end_as_well() -> None:
    standing, seen = Standing(), []
    for _ in range(4):
        seen.append(standing.until_it_acts())
        standing.dog.note_progress()
    over = [(StallVerdict.START_OVER, looks) for looks in (11, 21, 41)]
    assert seen == [*over, (StallVerdict.GIVE_UP, 81)]


def test_a_token_proves_that_the_new_start_helped() -> None:
    standing = Standing()
    for _ in range(10):
        assert standing.until_it_acts() == (StallVerdict.START_OVER, 11)
        standing.dog.note_progress()
        standing.dog.note_answer()


def test_counts_of_one_model_are_summed() -> None:
    assert Stalls(1, 2) + Stalls(10, 20) == Stalls(11, 22)
