"""The guard by numbers: what fits, what is let go for it, what is counted.

A token takes 10 bytes in a cache, and a row 256 of them more; a decode 100 bytes a row for itself,
a chunk 10 a token.
"""

from dataclasses import dataclass

import pytest

from omlx_server.core.blocks.block import CacheLayout, LayerKind, Size, Worth
from omlx_server.core.memory.estimate import STRUCTURAL, Planner
from omlx_server.core.memory.guard import Caches, Cuts, MemoryGuard, Relief
from omlx_server.core.memory.kv import Decode, Keeps, LayerKv, ModelShape, PrefillShape, StepShape
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.memory.pressure import MemoryPressure
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from tests.core.places import place
from tests.core.simulator import ROOMY, nobody_beside

BOTH = CacheLayout(frozenset({LayerKind.DELTA, LayerKind.CHECKPOINT}), block_size=4)
BLOCK, STATE = 40, 100
DECODE = StepShape(Decode(1, 100))  # 100 bytes
ONE = Caches((100,))  # 3,560 bytes
NOTHING = Cuts()


class Plain(Planner):
    """Steps take what is easily said."""

    def prefill(self, prefill: PrefillShape) -> int:
        return 10 * prefill.rows * prefill.tokens

    def decode(self, decode: Decode) -> int:
        return 100 * decode.rows


def planner() -> Planner:
    layers = (LayerKv(Keeps.GROWING, 10), LayerKv(Keeps.CONSTANT, STATE))
    return Plain(ModelShape(1, 1, 1, 1, 1, 1, 1, layers=layers[:1]), STRUCTURAL)


def make_guard(limit: int, *, queue: int = 0, **held: int) -> MemoryGuard:
    guard = MemoryGuard(limit, planner(), nobody_beside(), queue=queue)
    guard.begin(Ledger(limit, **held))
    return guard


def empty() -> PrefixCache:
    return PrefixCache(BOTH, "model", ROOMY)


def filled(blocks: int, checkpoints: int = 0) -> PrefixCache:
    """One conversation, the ends of whose first turns are superseded."""
    cache = empty()
    tokens = tuple(range(4 * blocks))
    for stop in range(4, len(tokens) + 1, 4):
        cache.store_block(place(cache.root(b""), tokens[:stop]), Size(BLOCK, 1))
    for stop in range(4, 4 * checkpoints + 1, 4):
        cache.store_checkpoint(place(cache.root(b""), tokens[:stop]), Size(STATE, 1), Worth.NEWEST)
    return cache


# -- what fits ---------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "fits"), [(3660, True), (3659, False)])
def test_a_step_may_fill_the_memory_to_the_last_byte(limit: int, fits: bool) -> None:
    assert make_guard(limit).make_room_for(DECODE, ONE, NOTHING, empty(), 0) is fits


@pytest.mark.parametrize(
    "held",
    [
        {"weights": 1000},
        {"pending": 1000},
        {"queue": 1000},
        {"queue": 1000, "pending": 900},
        {"queue": 400, "pending": 1000},
    ],
)
def test_what_else_is_held_is_not_there_for_it(held: dict[str, int]) -> None:
    """The queue of the cold tier is set aside; what is in it already is not counted twice."""
    assert make_guard(4660, **held).make_room_for(DECODE, ONE, NOTHING, empty(), 0)
    assert not make_guard(4659, **held).make_room_for(DECODE, ONE, NOTHING, empty(), 0)


def test_live_caches_count_by_what_they_grow_to() -> None:
    assert make_guard(3660, live=2000).make_room_for(DECODE, ONE, NOTHING, empty(), 0)
    assert not make_guard(3659, live=2000).make_room_for(DECODE, ONE, NOTHING, empty(), 0)


def test_features_of_images_stay_when_caches_grow() -> None:
    for limit, fits in ((4160, True), (4159, False)):
        guard = make_guard(limit)
        guard.begin(Ledger(limit, live=500), features=500)
        assert guard.make_room_for(DECODE, ONE, NOTHING, empty(), 0) is fits


def test_what_rows_that_have_left_give_back_is_there_for_it() -> None:
    assert make_guard(3660, live=5000).make_room_for(DECODE, ONE, NOTHING, empty(), 0)
    assert not make_guard(3659, live=5000).make_room_for(DECODE, ONE, NOTHING, empty(), 0)


def test_what_is_cut_comes_on_top() -> None:
    cuts = Cuts(tokens=8)
    assert make_guard(3740).make_room_for(DECODE, ONE, cuts, empty(), 0)
    assert not make_guard(3739).make_room_for(DECODE, ONE, cuts, empty(), 0)


def test_several_prompts_under_way_count_each() -> None:
    caches = Caches((100,), (100, 100, 0))
    assert make_guard(3 * 3560 + 100).make_room_for(DECODE, caches, NOTHING, empty(), 0)
    assert not make_guard(3 * 3560 + 99).make_room_for(DECODE, caches, NOTHING, empty(), 0)


def test_the_account_shows_the_most_that_a_step_was_planned_to_take() -> None:
    guard = make_guard(50_000)
    for step in (DECODE, StepShape(Decode(3, 9)), DECODE):
        guard.make_room_for(step, ONE, NOTHING, empty(), 0)
    assert guard.ledger.step == 300
    guard.make_room_for(StepShape(Decode(900, 9)), ONE, NOTHING, empty(), 0)  # does not fit
    assert guard.ledger.step == 300


# -- what is let go ----------------------------------------------------------------------


def test_the_pool_goes_when_it_is_in_the_way_and_alone_if_that_is_enough() -> None:
    guard, cache = make_guard(3660 + 200, pool=1), filled(5)
    assert guard.make_room_for(DECODE, ONE, NOTHING, cache, 0)
    assert guard.drains_pool and guard.used == {Relief.POOL: 1}
    assert cache.index.nbytes == 200


def test_it_stays_when_there_is_room_besides() -> None:
    guard = make_guard(3660 + 400, pool=400)
    assert guard.make_room_for(DECODE, ONE, NOTHING, empty(), 0)
    assert not guard.drains_pool and not guard.used


def drained(cache: PrefixCache, steps: int) -> MemoryGuard:
    """A guard whose pool was in the way, and so many steps later is again."""
    guard = make_guard(3660 + 800, pool=90)
    assert guard.make_room_for(DECODE, ONE, NOTHING, cache, 0) and guard.drains_pool
    for _ in range(steps):
        guard.begin(Ledger(guard.limit))
    guard.begin(Ledger(guard.limit, pool=90))
    assert guard.make_room_for(DECODE, ONE, NOTHING, cache, 0)
    return guard


def test_when_it_was_drained_a_moment_ago_the_hot_tier_makes_room_for_it() -> None:
    cache = filled(20)
    guard = drained(cache, 10)
    assert not guard.drains_pool and guard.used == {Relief.POOL: 1, Relief.BLOCKS: 1}
    assert len(cache.index) == 17


def test_a_while_later_it_is_drained_again() -> None:
    cache = filled(20)
    guard = drained(cache, 50)
    assert guard.drains_pool and guard.used == {Relief.POOL: 2}
    assert len(cache.index) == 20


def test_it_is_drained_in_any_case_where_the_hot_tier_has_nothing_to_give() -> None:
    cache = filled(20)
    cache.enter(tuple(range(80)), b"", ())  # they are held
    guard = drained(cache, 0)
    assert guard.drains_pool and guard.used == {Relief.POOL: 2}


def test_superseded_states_go_before_any_block() -> None:
    cache = filled(5, checkpoints=3)  # two are superseded
    guard = make_guard(3660 + 200 + 300 - 150)
    assert guard.make_room_for(DECODE, ONE, NOTHING, cache, 0)
    assert guard.used == {Relief.CHECKPOINTS: 1}
    assert (len(cache.index), cache.index.checkpoint_count) == (5, 1)


def test_then_blocks_go_as_many_as_are_needed() -> None:
    cache = filled(20)
    guard = make_guard(3660 + 800 - 90)
    assert guard.make_room_for(DECODE, ONE, NOTHING, cache, 0)
    assert guard.used == {Relief.BLOCKS: 1}
    assert len(cache.index) == 17


def test_nothing_goes_where_there_is_room() -> None:
    cache = filled(20, checkpoints=3)
    guard = make_guard(3660 + cache.index.nbytes)
    assert guard.make_room_for(DECODE, ONE, NOTHING, cache, 0)
    assert not guard.used and len(cache.index) == 20


def test_the_hot_tier_keeps_its_floor_though_the_step_does_not_fit() -> None:
    cache = filled(20)
    guard = make_guard(8000, live=7800)  # 400 bytes: a twentieth
    assert not guard.make_room_for(DECODE, Caches((100,) * 3), NOTHING, cache, 0)
    assert guard.floor == 400 and cache.index.nbytes == 400


def test_the_floor_is_a_share_of_what_the_weights_leave() -> None:
    assert make_guard(8000, weights=6000).floor == 100


def test_what_is_held_by_a_prompt_stays() -> None:
    cache = filled(5)
    cache.enter(tuple(range(20)), b"", ())
    guard = make_guard(3660)
    assert not guard.make_room_for(DECODE, ONE, NOTHING, cache, 0)
    assert cache.index.nbytes == 200 and not guard.used


# -- promises ----------------------------------------------------------------------------

# With a chunk of 20: 3,560 for the caches, 200 for the step.


@pytest.mark.parametrize(("limit", "fits"), [(4000, True), (3950, False)])
def test_a_promise_and_who_is_alone_count_on_all_but_the_floor(limit: int, fits: bool) -> None:
    guard = make_guard(limit)
    assert guard.can_reserve(ONE, 20, 0) is fits
    assert guard.ever_fits(ONE, 20) is fits


def test_neither_asks_for_who_is_at_work_but_for_weights_and_queue() -> None:
    busy = make_guard(4000, live=3900, blocks=3000)
    assert busy.can_reserve(ONE, 20, 0) and busy.ever_fits(ONE, 20)
    for held in ({"weights": 500}, {"queue": 500}):
        guard = make_guard(4000, **held)
        assert not guard.can_reserve(ONE, 20, 0) and not guard.ever_fits(ONE, 20)


@dataclass
class Beside:
    """Other models, which give no room."""

    live: int
    reserved: int
    pending: int = 0
    count: int = 1
    hot: int = 0
    at_work: bool = True
    are_computing: bool = True

    def make_room(self, nbytes: int, floor: int, *, at_rest: bool) -> int:
        return 0


@pytest.mark.parametrize("beside", [Beside(500, 0), Beside(0, 500), Beside(400, 500)])
def test_a_promise_counts_what_others_hold_or_will_hold(beside: Beside) -> None:
    for limit, fits in ((4486, True), (4482, False)):
        guard = MemoryGuard(limit, planner(), beside)
        guard.begin(Ledger(limit))
        assert guard.can_reserve(ONE, 20, 0) is fits
        assert guard.ever_fits(ONE, 20)


def test_what_steps_really_took_counts_for_promises_but_not_for_who_is_alone() -> None:
    model = planner()
    guard = MemoryGuard(4000, model, nobody_beside())
    guard.begin(Ledger(4000))
    model.observe(StepShape(prefills=(PrefillShape(1, 100, 0),)), 3000, 0)  # thrice the estimate
    assert not guard.can_reserve(ONE, 20, 0)
    assert guard.ever_fits(ONE, 20)
    assert guard.can_reserve(ONE, 20, 600)  # it passes


def test_so_it_does_for_steps() -> None:
    model = planner()
    guard = MemoryGuard(4000, model, nobody_beside())
    guard.begin(Ledger(4000))
    step, after = StepShape(prefills=(PrefillShape(1, 30, 0),)), Caches(prefills=(100,))
    assert guard.make_room_for(step, after, NOTHING, empty(), 0)
    model.observe(step, 600, 0)
    assert not guard.make_room_for(step, after, NOTHING, empty(), 0)
    assert guard.make_room_for(step, after, NOTHING, empty(), 600)


def test_the_last_chunk_of_a_prompt_is_what_a_promise_is_about() -> None:
    """The largest context, of a row that decodes or of a prompt, beside the decode of all rows."""
    shapes: list[StepShape] = []

    class Noting(Plain):
        def transient(self, step: StepShape) -> int:
            shapes.append(step)
            return super().transient(step)

    layer = (LayerKv(Keeps.GROWING, 10),)
    noting = Noting(ModelShape(1, 1, 1, 1, 1, 1, 1, layers=layer), STRUCTURAL)
    guard = MemoryGuard(10**6, noting, nobody_beside())
    guard.ever_fits(Caches((300, 300), (500, 90)), 64)
    guard.ever_fits(Caches((), (50,)), 64)
    assert shapes == [
        StepShape(
            Decode(2, 300, grows=True, refers=True, catches_up=True),
            (PrefillShape(1, 64, 436, refers=True),),
        ),
        StepShape(
            Decode(1, 50, grows=True, refers=True, catches_up=True),
            (PrefillShape(1, 64, 0, refers=True),),
        ),
    ]


# -- counting and telling ----------------------------------------------------------------


def test_a_relief_is_counted_once_a_step_and_what_happens_to_a_sequence_each_time() -> None:
    guard = make_guard(1000)
    for _ in range(3):
        for relief in Relief:
            guard.note(relief)
    each = {Relief.PREEMPT, Relief.REJECT}
    assert guard.used == {relief: 3 if relief in each else 1 for relief in Relief}
    guard.begin(Ledger(1000))
    guard.note(Relief.CHUNK)
    assert guard.used[Relief.CHUNK] == 2


def test_a_new_step_keeps_the_pool_unless_it_is_in_the_way_again() -> None:
    guard = make_guard(3660, pool=10)
    guard.make_room_for(DECODE, ONE, NOTHING, empty(), 0)
    assert guard.drains_pool
    guard.begin(Ledger(3660))
    assert not guard.drains_pool


def test_the_account_says_what_is_needed_and_what_is_held() -> None:
    guard = make_guard(100_000, weights=60_000, live=5000)
    assert guard.explain(ONE, 20) == (
        "it needs 3.56 KB for its caches and 200 B for a step, and the hot tier keeps 2 KB; "
        "held now: weights 60 KB, live 5 KB of 100 KB"
    )


def test_what_blocks_of_waiting_prompts_may_have_is_left_by_who_is_at_work() -> None:
    free = make_guard(4000, weights=500, blocks=900, queue=100)
    assert free.bytes_for_read_ahead() == 4000 - 500 - 100 - free.floor, "stored blocks can go"
    busy = make_guard(8000, weights=500, live=700)
    assert busy.bytes_for_read_ahead() == 8000 - 500 - 700 - busy.floor
    busy.reserve(Caches((100,)))
    assert busy.reserved > 700
    assert busy.bytes_for_read_ahead() == 8000 - 500 - busy.reserved - busy.floor
    beside = MemoryGuard(4000, planner(), Beside(400, 500, pending=30, hot=60))
    beside.begin(Ledger(4000))
    assert beside.bytes_for_read_ahead() == 4000 - 500 - 30 - 60 - beside.floor
    assert make_guard(4000, weights=5000).bytes_for_read_ahead() == 0


# -- a machine that is short of memory ---------------------------------------------------


def test_what_the_machine_takes_comes_from_the_hot_tier_and_stops_no_step() -> None:
    cache = filled(100)
    guard = make_guard(20_000, blocks=cache.index.idle_bytes)
    guard.pressure = MemoryPressure(taken=14_000)
    assert guard.make_room_for(DECODE, ONE, NOTHING, cache, 0)
    assert cache.index.idle_bytes <= 20_000 - 14_000 - 3_660
    assert guard.used == {Relief.BLOCKS: 1}
    guard.pressure = MemoryPressure(taken=19_000)
    assert guard.make_room_for(DECODE, ONE, NOTHING, cache, 0), "a step runs as before"
    assert cache.index.idle_bytes == guard.floor // BLOCK * BLOCK
    assert Relief.POOL not in guard.used


def test_room_kept_for_the_cold_tier_is_not_taken_twice() -> None:
    cache = filled(100)
    guard = make_guard(20_000, blocks=4_000, queue=5_000)
    guard.pressure = MemoryPressure(taken=20_000 - 4_000 - 3_660)
    assert guard.make_room_for(DECODE, ONE, NOTHING, cache, 0)
    assert cache.index.idle_bytes == 4_000


def test_a_pause_reads_less_ahead() -> None:
    guard = make_guard(4000, weights=500)
    before = guard.bytes_for_read_ahead()
    guard.pressure = MemoryPressure(taken=300)
    assert guard.bytes_for_read_ahead() == before - 300
