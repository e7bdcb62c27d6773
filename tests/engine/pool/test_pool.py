"""Models come and go as they are asked for: in which order, for whom, and that nothing leaks."""

import asyncio
import math
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from omlx_server.engine.pool import pool as pools
from omlx_server.engine.pool.entry import Phase, Rules
from omlx_server.errors import Conflict, NoRoom, Unavailable
from tests.engine.place import ONE, TWO, Place, error_of, play, until
from tests.engine.workshop import SIZE

# -- coming ----------------------------------------------------------------------------------


def test_models_are_loaded_in_the_order_in_which_they_were_asked_for() -> None:
    async def scene() -> None:
        place = Place(Rules())
        order = "dacbeadc"
        await asyncio.gather(*(place.use(key) for key in order))
        assert place.shop.done == ["+d", "+a", "+c", "+b", "+e"]
        await place.quiet("abcde")

    play(scene)


def test_a_pause_tells_who_is_in_use_and_others_wait_for_its_end() -> None:
    async def scene() -> None:
        place = Place(TWO)
        await place.use("a")
        async with place.pool.paused() as keys:
            assert keys == ["a"]
            waits = place.soon("b")
            await asyncio.sleep(0)
            assert place.phase("b") is Phase.ABSENT
        await waits
        place.shop.gate.clear()
        loads = place.soon("c")
        await until(lambda: place.phase("c") is Phase.LOADING)
        later = place.soon("d")
        asyncio.get_running_loop().call_later(0.01, place.shop.gate.set)
        async with place.pool.paused() as keys:
            assert {"c", "d"} <= set(keys)
        await asyncio.gather(loads, later)

    play(scene)


def test_what_is_loaded_is_had_at_once_while_another_one_loads() -> None:
    async def scene() -> None:
        place = Place(TWO)
        await place.use("a")
        place.shop.gate.clear()
        other = place.soon("b")
        await until(lambda: place.phase("b") is Phase.LOADING)
        await asyncio.wait_for(place.use("a"), 5)
        assert not other.done()
        place.shop.gate.set()
        await other
        await place.quiet("ab")

    play(scene)


def test_a_failed_load_reaches_all_who_wait_and_the_next_one_tries_again() -> None:
    async def scene() -> None:
        place = Place()
        place.shop.fails["a"] = OSError("no such weights")
        errors = await asyncio.gather(*(error_of(place.use("a")) for _ in range(5)))
        assert [str(error) for error in errors] == ["no such weights"] * 5
        entry = place.pool.entry("a")
        assert entry is not None
        assert (entry.phase, entry.problem) == (Phase.FAILED, "no such weights")
        del place.shop.fails["a"]
        await place.use("a")
        assert (place.phase("a"), entry.problem) == (Phase.LOADED, "")
        await place.quiet("a")

    play(scene)


def test_a_load_tells_what_it_has_read_and_never_more_than_all() -> None:
    async def scene() -> None:
        place = Place()
        place.shop.gate.clear()
        coming = place.soon("a")
        await until(lambda: place.phase("a") is Phase.LOADING)
        entry = place.pool.entry("a")
        assert entry is not None
        for read, counted in ((0, 0), (1, 1), (2, 3), (SIZE, SIZE), (1, SIZE)):
            entry.note_read(read)
            assert entry.read_bytes == counted
        place.shop.fails["a"] = OSError("no such weights")
        place.shop.gate.set()
        assert str(await error_of(coming)) == "no such weights"
        place.shop.gate.clear()
        again = place.soon("a")
        await until(lambda: place.phase("a") is Phase.LOADING)
        assert entry.read_bytes == 0
        del place.shop.fails["a"]
        place.shop.gate.set()
        await again
        assert entry.read_bytes == SIZE // 2
        await place.quiet("a")

    play(scene)


def test_nothing_leaves_for_one_that_can_not_be_loaded() -> None:
    async def scene() -> None:
        place = Place(ONE)
        await place.use("a")
        place.shop.unfit["b"] = OSError("its header is cut")
        for _ in range(3):
            assert str(await error_of(place.use("b"))) == "its header is cut"
            entry = place.pool.entry("b")
            assert entry is not None
            assert (entry.phase, entry.problem) == (Phase.FAILED, "its header is cut")
            await place.use("a")
        assert place.shop.done == ["+a"]
        del place.shop.unfit["b"]
        await place.use("b")
        assert place.shop.done == ["+a", "-a", "+b"]
        await place.quiet("ab")

    play(scene)


def test_nothing_leaves_for_one_that_nobody_waits_for_any_more() -> None:
    async def scene() -> None:
        place = Place(TWO)
        await place.use("a")
        place.shop.gate.clear()
        loading, waiting = place.soon("b"), place.soon("c")
        await until(lambda: place.phase("b") is Phase.LOADING)
        waiting.cancel()
        await asyncio.wait({waiting})
        place.shop.gate.set()
        await loading
        await place.quiet("abc")
        assert place.shop.done == ["+a", "+b"]
        await place.use("c")
        await place.quiet("abc")

    play(scene)


def test_what_somebody_was_told_to_come_again_for_comes() -> None:
    async def scene() -> None:
        place = Place(TWO, patience=0.03)
        place.shop.gate.clear()
        loading = asyncio.create_task(place.pool.load(place.shop.wanted("b")))
        await until(lambda: place.phase("b") is Phase.LOADING)
        with pytest.raises(Unavailable):
            await place.use("c")
        place.shop.gate.set()
        await loading
        await until(lambda: place.phase("c") is Phase.LOADED)
        await place.quiet("bc")

    play(scene)


def test_one_that_somebody_was_sent_away_for_is_not_kept_out_by_others_without_end() -> None:
    """Answers of a last longer than patience does; there is always one."""

    async def scene() -> None:
        place = Place(patience=0.05)
        stop = asyncio.Event()

        async def ask_on(pause: float) -> None:
            await asyncio.sleep(pause)
            while not stop.is_set():
                with suppress(Unavailable):
                    await place.use("a", 0.08)

        asking = [asyncio.create_task(ask_on(0.02 * number)) for number in range(4)]
        await until(lambda: place.users("a") > 2)
        with pytest.raises(Unavailable):
            await place.use("b")
        await until(lambda: "+b" in place.shop.done, 2)
        stop.set()
        await asyncio.gather(*asking)
        await place.quiet("ab")

    play(scene)


def test_one_that_is_wanted_again_in_the_last_moment_comes() -> None:
    async def scene() -> None:
        place = Place()
        place.shop.gate.clear()
        loading, waiting = place.soon("b"), place.soon("c")
        await until(lambda: place.phase("b") is Phase.LOADING)
        waiting.cancel()
        await asyncio.wait({waiting})
        entry = place.pool.entry("c")
        assert entry is not None and entry.load_task is not None
        place.shop.gate.set()
        while not entry.load_task.done():
            await asyncio.sleep(0)
        assert entry.load_task is not None, "too late to tell"
        await place.use("c")
        await loading
        await place.quiet("bc")

    play(scene)


def test_unused_models_leave_a_machine_that_is_very_short_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omlx_server.engine.pool.entry._SHORT_TTL", 0.01)
    monkeypatch.setattr(pools, "_TICK_SECONDS", 0.01)

    async def scene() -> None:
        place = Place(TWO)
        place.pool.start()
        await place.use("a")
        using = place.soon("b", 0.2)
        await asyncio.sleep(0.05)
        assert place.phase("a") is Phase.LOADED
        place.shop.rules = replace(TWO, is_short=True)
        await until(lambda: place.phase("a") is Phase.ABSENT)
        assert place.phase("b") is Phase.LOADED
        await using
        await until(lambda: place.phase("b") is Phase.ABSENT)
        await place.use("a")
        await place.pool.close()

    play(scene)


# -- room ------------------------------------------------------------------------------------


def test_the_one_that_nobody_used_for_longest_goes() -> None:
    async def scene() -> None:
        place = Place(TWO)
        for key in "abac":
            await place.use(key)
        assert place.shop.done == ["+a", "+b", "-b", "+c"]
        await place.quiet("abc")

    play(scene)


def test_large_models_need_more_room() -> None:
    async def scene() -> None:
        place = Place(Rules(limit=100), a=40, b=40, c=80, d=86)
        for key in "abc":
            await place.use(key)
        assert place.shop.done == ["+a", "+b", "-a", "-b", "+c"]
        with pytest.raises(NoRoom, match="not enough memory for this model"):
            await place.use("d")
        assert place.phase("c") is Phase.LOADED  # nobody goes for what never fits
        await place.quiet("abcd")

    play(scene)


def test_a_leased_model_stays_until_it_is_released() -> None:
    async def scene() -> None:
        place = Place()
        lease = await place.take("a")
        other = place.soon("b")
        await asyncio.sleep(0.03)
        assert not other.done() and lease.model.alive
        place.give(lease)
        await other
        assert place.shop.done == ["+a", "-a", "+b"]
        await place.quiet("ab")

    play(scene)


def test_nobody_starves_between_two_models_in_use() -> None:
    """Each model's clients come again and again, more often than they go."""

    async def scene() -> None:
        place = Place()
        served = {"a": 0, "b": 0, "c": 0}

        async def client(key: str) -> None:
            while min(served.values()) < 5:
                await place.use(key, 0.002)
                served[key] += 1

        await asyncio.gather(*(client(key) for key in "aaabbbc"))
        turns = [event for event in place.shop.done if event[0] == "+"]
        assert all(turns[i] != turns[i + 1] for i in range(len(turns) - 1))
        await place.quiet("abc")

    play(scene)


def test_whoever_comes_for_a_model_that_is_to_go_waits_behind() -> None:
    async def scene() -> None:
        place = Place()
        lease = await place.take("a")
        other = place.soon("b")
        await until(lambda: place.phase("a") is Phase.UNLOADING)
        late = place.soon("a")
        await asyncio.sleep(0.01)
        assert not late.done()
        place.give(lease)
        await asyncio.gather(other, late)
        assert place.shop.done == ["+a", "-a", "+b", "-b", "+a"]
        await place.quiet("ab")

    play(scene)


def test_those_in_use_for_too_long_stay_and_are_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_DRAIN_SECONDS", 0.05)

    async def scene() -> None:
        place = Place()
        lease = await place.take("a")
        other = asyncio.create_task(error_of(place.use("b")))
        await until(lambda: place.phase("a") is Phase.UNLOADING)
        late = place.soon("a")
        error = await other
        assert isinstance(error, Unavailable) and error.retry_after
        await late
        assert lease.model.alive
        place.give(lease)
        assert place.shop.done == ["+a"]
        await place.quiet("ab")

    play(scene)


def test_pinned_models_stay() -> None:
    async def scene() -> None:
        place = Place()
        await place.use("a")
        place.pool.pin(place.shop.wanted("a"), True)
        with pytest.raises(NoRoom, match="pinned"):
            await place.use("b")
        place.pool.pin(place.shop.wanted("a"), False)
        await place.use("b")
        await place.pool.load(place.shop.wanted("c", pinned=True))
        with pytest.raises(NoRoom, match="pinned"):
            await place.use("b")
        place.pool.renew(place.shop.wanted("c"))
        await place.use("b")
        await place.quiet("abc")

    play(scene)


# -- going -----------------------------------------------------------------------------------


def test_a_model_is_unloaded_on_command() -> None:
    async def scene() -> None:
        place = Place()
        await place.pool.unload("nobody")
        await place.use("a")
        await place.pool.unload("a")
        await place.pool.unload("a")
        assert place.shop.done == ["+a", "-a"]
        assert (place.phase("a"), place.pool.loaded()) == (Phase.ABSENT, [])
        await place.use("a")
        await place.quiet("a")

    play(scene)


def test_a_busy_model_is_unloaded_once_it_is_free_or_not_at_all() -> None:
    async def scene() -> None:
        place = Place(patience=0.05)
        lease = await place.take("a")
        with pytest.raises(Conflict, match="in use by 1 request"):
            await place.pool.unload("a")
        await place.use("a")
        going = asyncio.create_task(place.pool.unload("a"))
        await asyncio.sleep(0.01)
        assert lease.model.alive
        place.give(lease)
        await going
        assert place.shop.there == ()
        await place.quiet("a")

    play(scene)


def test_the_one_that_nobody_used_for_longest_makes_way() -> None:
    async def scene() -> None:
        place = Place(Rules())
        for key in "abcde":
            await place.use(key)
        place.pool.pin(place.shop.wanted("a"), True)
        lease = await place.take("b")
        assert await place.pool.make_way("c") and await place.pool.make_way("c")
        assert place.shop.done[-2:] == ["-d", "-e"]
        with pytest.raises(Unavailable) as raised:
            await place.pool.make_way("c")
        assert raised.value.retry_after
        place.give(lease)
        assert await place.pool.make_way("c")
        assert place.shop.done[-1] == "-b"
        assert not await place.pool.make_way("c"), "the pinned one never leaves"
        await place.quiet("abcde")

    play(scene)


def test_nobody_waits_for_others_to_make_way() -> None:
    async def scene() -> None:
        place = Place(Rules())
        await place.use("a")
        place.shop.gate.clear()
        other = place.soon("b")
        await until(lambda: place.phase("b") is Phase.LOADING)
        with pytest.raises(Unavailable):
            await place.pool.make_way("c")
        place.shop.gate.set()
        await other
        assert place.shop.done == ["+a", "+b"]
        await place.quiet("ab")

    play(scene)


async def _make_way_behind(
    place: Place, first: Coroutine[Any, Any, object], key: str
) -> bool | BaseException | None:
    """Ask for it when the turn is free, but somebody else is the next to have it."""
    async with place.pool._turn:
        other = asyncio.create_task(first)
        await asyncio.sleep(0)
    try:
        return await place.pool.make_way(key)
    except Unavailable as error:
        return error
    finally:
        await other


def test_whoever_left_before_its_turn_has_made_way_and_comes_again() -> None:
    async def scene() -> None:
        place = Place(TWO)
        await place.use("a")
        await place.use("b")
        assert await _make_way_behind(place, place.pool.unload("a"), "b") is True
        assert place.shop.done == ["+a", "+b", "-a"]
        await place.use("a")
        await place.quiet("ab")

    play(scene)


def test_whoever_was_asked_for_before_its_turn_stays() -> None:
    async def scene() -> None:
        place = Place(TWO)
        await place.use("a")
        await place.use("b")
        leases = []

        async def take() -> None:
            async with place.pool._turn:
                leases.append(await place.take("a"))

        assert isinstance(await _make_way_behind(place, take(), "b"), Unavailable)
        assert place.shop.done == ["+a", "+b"]
        place.give(leases[0])
        await place.quiet("ab")

    play(scene)


def test_one_that_is_being_taken_apart_is_not_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever began it was cancelled; another drain that includes it comes to nothing."""
    monkeypatch.setattr(pools, "_DRAIN_SECONDS", 0.05)

    async def scene() -> None:
        place = Place(Rules(max_loaded=2), a=1)
        place.shop.unload_seconds = 0.3
        await place.use("a")
        busy = await place.take("b")
        place.shop.rules = Rules(max_loaded=1)
        going = asyncio.create_task(place.pool.unload("a"))
        entry = place.pool.entry("a")
        assert entry is not None
        await until(lambda: entry.unload_task is not None)
        going.cancel()
        assert isinstance(await error_of(place.use("c")), Unavailable)
        assert entry.unload_task is not None, "else this shows nothing"
        assert place.phase("a") is Phase.UNLOADING
        place.give(busy)
        await place.use("a")
        await place.quiet("abc")

    play(scene)


def test_one_that_goes_while_others_are_waited_for_is_not_taken_apart_twice() -> None:
    async def scene() -> None:
        place = Place(TWO)
        place.shop.unload_seconds = 0.02
        await place.use("a")
        busy = await place.take("b")
        place.shop.rules = ONE
        going = asyncio.create_task(place.pool.unload("a"))
        entry = place.pool.entry("a")
        assert entry is not None
        await until(lambda: entry.unload_task is not None)
        going.cancel()
        other = place.soon("c")
        await until(lambda: entry.model is None)
        place.give(busy)
        await other
        assert place.shop.done == ["+a", "+b", "-a", "-b", "+c"]
        await place.quiet("abc")

    play(scene)


def test_unused_models_leave_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_TICK_SECONDS", 0.005)

    async def scene() -> None:
        place = Place(Rules())
        place.pool.start()
        await place.pool.load(place.shop.wanted("a", ttl=0.05))
        await place.pool.load(place.shop.wanted("b"))
        await place.pool.load(place.shop.wanted("c", ttl=0.05, pinned=True))
        lease = await place.take("a")
        await asyncio.sleep(0.1)
        assert lease.model.alive
        place.give(lease)
        assert place.phase("a") is Phase.LOADED
        await until(lambda: place.phase("a") is Phase.ABSENT)
        assert [made.key for made in place.shop.there] == ["b", "c"]
        await place.pool.close()
        await place.quiet("abc")

    play(scene)


@pytest.mark.parametrize(
    ("ttl", "pinned", "keep", "stays"),
    [
        *((0.0, False, 0.0, False), (0.0, False, None, True), (0.0, False, math.inf, True)),
        *((0.05, False, math.inf, False), (0.05, False, 60.0, False), (60.0, False, 0.05, False)),
        (0.0, True, 0.0, True),
    ],
)
def test_a_client_may_shorten_a_models_time_and_not_lengthen_it(
    monkeypatch: pytest.MonkeyPatch, ttl: float, pinned: bool, keep: float | None, stays: bool
) -> None:
    """What it says lasts until the model is unloaded."""
    monkeypatch.setattr(pools, "_TICK_SECONDS", 0.01)

    async def scene() -> None:
        place = Place()
        place.pool.keep("a", 0.0)  # nobody has heard of it
        wanted = place.shop.wanted("a", ttl=ttl, pinned=pinned)
        await place.pool.load(wanted)
        place.pool.keep("a", keep)
        place.pool.start()
        if stays:
            await asyncio.sleep(0.1)
            assert place.phase("a") is Phase.LOADED
            return
        await until(lambda: place.phase("a") is Phase.ABSENT)
        await place.pool.load(wanted)
        entry = place.pool.entry("a")
        assert entry is not None and entry.ttl == ttl

    play(scene)


def test_a_model_that_is_wanted_again_while_another_expires_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "_TICK_SECONDS", 0.005)

    async def scene() -> None:
        place = Place(Rules())
        for key in "ab":
            await place.pool.load(place.shop.wanted(key, ttl=0.02))
        await asyncio.sleep(0.03)
        place.shop.unload_seconds = 0.05
        place.pool.start()
        await until(lambda: place.phase("a") is Phase.UNLOADING)
        lease = await place.take("b")
        await asyncio.sleep(0.1)
        assert lease.model.alive and place.shop.wrong == []
        place.give(lease)
        await until(lambda: place.phase("b") is Phase.ABSENT)
        await place.pool.close()
        await place.quiet("ab")

    play(scene)


def test_models_expire_after_one_that_could_not_be_taken_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "_TICK_SECONDS", 0.005)

    async def scene() -> None:
        place = Place(Rules())
        place.shop.unload_fails["a"] = Unavailable("gone")
        for key in "ab":
            await place.pool.load(place.shop.wanted(key, ttl=0.02))
        place.pool.start()
        await until(lambda: place.phase("b") is Phase.ABSENT)
        await place.pool.close()

    play(scene)


def test_one_that_could_not_be_taken_apart_costs_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are to go; what is left of the second one is had, or loaded, but once."""

    async def scene() -> None:
        place = Place(TWO)
        for key in "ab":
            await place.use(key)
        place.shop.rules = ONE
        place.shop.unload_fails["a"] = Unavailable("gone")
        await error_of(place.use("c"))
        place.shop.rules = Rules()
        await place.use("b")
        assert [made.key for made in place.shop.there].count("b") == 1
        assert len(place.pool.loaded()) == len({made.key for made in place.pool.loaded()})

    play(scene)


# -- failures of models that are there -------------------------------------------------------


def test_a_failed_model_goes_and_comes_anew() -> None:
    async def scene() -> None:
        place = Place()
        lease = await place.take("a")
        lease.model.held = 0  # of no use any more
        place.pool.unload_failed("a")
        again = place.soon("a")
        await again
        assert place.shop.done == ["+a", "-a", "+a"]
        lease.release()
        place.pool.unload_failed("nobody")
        await place.quiet("a")

    play(scene)


def test_a_failed_model_holds_its_room_until_it_is_gone() -> None:
    async def scene() -> None:
        place = Place(TWO)
        await place.use("a")
        place.shop.gate.clear()
        loading = place.soon("b")
        await until(lambda: place.phase("b") is Phase.LOADING)
        other = place.soon("c")
        await asyncio.sleep(0.01)
        place.pool.unload_failed("a")
        place.shop.gate.set()
        await asyncio.gather(loading, other)
        await until(lambda: "-a" in place.shop.done)
        await place.quiet("abc")

    play(scene)


def test_a_model_that_fails_while_it_is_waited_for_is_not_had_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "_DRAIN_SECONDS", 0.03)

    async def scene() -> None:
        place = Place()
        lease = await place.take("a")
        other = asyncio.create_task(error_of(place.use("b")))
        await until(lambda: place.phase("a") is Phase.UNLOADING)
        lease.model.held = 0
        place.pool.unload_failed("a")
        await other
        await place.use("a")
        assert "-a" in place.shop.done
        lease.release()
        await place.quiet("ab")

    play(scene)


# -- the end ---------------------------------------------------------------------------------


def test_at_the_end_nobody_is_left_waiting_and_nothing_comes() -> None:
    async def scene() -> None:
        place = Place(TWO)
        place.pool.start()
        await place.use("a")
        place.shop.gate.clear()
        waiting = [asyncio.create_task(error_of(place.use(key))) for key in "bbc"]
        await until(lambda: place.phase("b") is Phase.LOADING)
        await place.pool.close()
        errors = await asyncio.gather(*waiting)
        assert all(isinstance(error, Unavailable) for error in errors)
        place.shop.gate.set()
        assert isinstance(await error_of(place.use("b")), Unavailable)
        assert place.shop.done == ["+a"]
        await place.quiet("abc")

    play(scene)


# -- by chance -------------------------------------------------------------------------------

STEPS = 500
KEYS = "abcdef"


class Chaos:
    """Clients that come, wait, leave and fail as it happens."""

    def __init__(self, seed: int, rules: Rules, *, failing: bool) -> None:
        self.chance = random.Random(seed)
        self.place = Place(rules, 0.05, a=20, b=30, c=10, d=40, e=25, f=35)
        self.failing = failing
        self.errors: list[BaseException] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.served = 0

    async def run(self) -> None:
        for _ in range(STEPS):
            self._step(self.chance.choice(KEYS))
            await asyncio.sleep(self.chance.choice([0, 0, 0.001, 0.003]))
            if self.chance.random() < 0.15:
                self.chance.choice(self.tasks[-10:]).cancel()
        await asyncio.wait(self.tasks)

    def _step(self, key: str) -> None:
        place, kind = self.place, self.chance.random()
        wanted = place.shop.wanted(key, ttl=self.chance.choice([0, 0.02]))
        if kind < 0.05:
            place.pool.pin(wanted, self.chance.random() < 0.3)
        elif kind < 0.08:
            place.pool.renew(wanted)
        elif kind < 0.12:
            self._break(key)
        work = place.pool.unload(key) if kind > 0.95 else self._use(key)
        self.tasks.append(asyncio.create_task(self._go(work)))

    def _break(self, key: str) -> None:
        shop, entry = self.place.shop, self.place.pool.entry(key)
        if self.chance.random() < 0.5 or not self.failing:
            shop.fails[key] = OSError("weights")
            asyncio.get_running_loop().call_later(0.01, shop.fails.pop, key, None)
        elif entry is not None and entry.model is not None and entry.phase is Phase.LOADED:
            entry.model.held = -1000
            self.place.pool.unload_failed(key)

    async def _use(self, key: str) -> None:
        await self.place.use(key, self.chance.choice([0, 0.002, 0.005, 0.02]))
        self.served += 1

    async def _go(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (Unavailable, NoRoom, Conflict, OSError) as error:
            self.errors.append(error)


@pytest.mark.parametrize("failing", [False, True], ids=["", "models fail"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_the_rules_are_kept_and_nothing_leaks(
    seed: int, failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_TICK_SECONDS", 0.01)
    rules = (Rules(max_loaded=2), Rules(limit=100), Rules(limit=130, max_loaded=3))[seed]

    async def scene() -> None:
        chaos = Chaos(seed, rules, failing=failing)
        place = chaos.place
        place.pool.start()
        await chaos.run()
        place.shop.fails.clear()
        for key in KEYS:
            place.pool.pin(place.shop.wanted(key), False)
        await place.quiet(KEYS)
        for key in KEYS:
            await place.pool.load(place.shop.wanted(key))
        assert chaos.served > STEPS / 4 and chaos.errors
        await place.pool.close()
        await place.quiet(KEYS)

    play(scene)
