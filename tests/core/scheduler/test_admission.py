"""What the scheduler's plans mean in memory: which caches, which group_shapes, which cuts."""

from collections.abc import Sequence as Items
from dataclasses import replace

import pytest

from omlx_server.core.blocks.block import NOTHING_KEPT, CacheLayout, LayerKind, Size
from omlx_server.core.memory.guard import Caches, Cuts, MemoryGuard, Relief
from omlx_server.core.memory.kv import Decode, StepShape
from omlx_server.core.memory.kv import PrefillShape as Forward
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.memory.pressure import MemoryPressure, PressureLevel
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.scheduler.limits import Grouping
from omlx_server.core.scheduler.memory_admission import Admission, AtWork, group_shapes
from omlx_server.core.scheduler.sequence import PrefillState, Sequence
from omlx_server.core.step import Chunk, SequenceId
from tests.core.places import place
from tests.core.simulator import PLANNER, ROOMY, make_request, nobody_beside

LAYOUT = CacheLayout(frozenset({LayerKind.DELTA}), block_size=4)
NOBODY = AtWork((), (), ())


class Asked(MemoryGuard):
    """Notes what it is asked."""

    def __init__(self, limit: int = 1 << 30) -> None:
        super().__init__(limit, PLANNER, nobody_beside())
        self.begin(Ledger(limit))
        self.steps: list[tuple[StepShape, Caches, Cuts]] = []
        self.reservations: list[tuple[Caches, int]] = []
        self.alone: list[tuple[Caches, int]] = []

    def make_room_for(
        self, step: StepShape, after: Caches, cuts: Cuts, cache: PrefixCache, now: float
    ) -> bool:
        self.steps.append((step, after, cuts))
        return super().make_room_for(step, after, cuts, cache, now)

    def can_reserve(
        self, caches: Caches, chunk: int, now: float, *, spares_machine: bool = False
    ) -> bool:
        self.reservations.append((caches, chunk))
        return super().can_reserve(caches, chunk, now, spares_machine=spares_machine)

    def ever_fits(self, caches: Caches, chunk: int) -> bool:
        self.alone.append((caches, chunk))
        return super().ever_fits(caches, chunk)


def cache() -> PrefixCache:
    return PrefixCache(LAYOUT, "model", ROOMY)


def admission(guard: MemoryGuard | None, of: PrefixCache | None = None) -> Admission:
    return Admission(guard, of or cache(), Grouping())


def lets_in(admission: Admission, prefill: PrefillState, work: AtWork, now: float) -> bool:
    return admission.may_admit(prefill, work, now) and admission.admit(prefill, work, now)


def prefill(name: str, length: int, n: int = 1, computed: int = 0) -> PrefillState:
    request = make_request(name, length, 9, n=n)
    sequences = [Sequence(SequenceId(request.id, choice), request) for choice in range(n)]
    made = PrefillState(sequences, 0, cache().enter(request.tokens[:-1], b"", ()))
    made.computed = computed
    return made


def row(name: str, fed: int) -> Sequence:
    request = make_request(name, fed, 9)
    return Sequence(SequenceId(request.id, 0), request, fed=fed)


def chunk(of: PrefillState, start: int, stop: int) -> Chunk:
    joins = of.joins() if stop == of.target else ()
    return Chunk(of.key, start, of.context[start:stop], joins)


def at_work(
    rows: Items[Sequence] = (), active: Items[PrefillState] = (), others: Items[PrefillState] = ()
) -> AtWork:
    return AtWork(rows, active, [p.handle for p in others])


def test_without_a_guard_everything_fits() -> None:
    free, long = admission(None), prefill("a", 10**6)
    work = at_work([row("b", 10**6)], [long])
    assert free.make_room_for_rows(work, 0) and free.fits_alone(10**9, 50)
    assert lets_in(free, long, work, 0)
    assert free.make_room_for_chunk([], chunk(long, 0, 999), work, 0)
    assert not free.drains_pool and free.explain(5) == ""
    free.note(Relief.PREEMPT)


def test_rows_keep_their_lengths_and_each_gets_a_token_more() -> None:
    guard = Asked()
    work = at_work([row("a", 18), row("b", 30)], [prefill("c", 90, computed=40)])
    assert admission(guard).make_room_for_rows(work, 0)
    [(step, after, _)] = guard.steps
    assert step == StepShape(Decode(2, 30, grows=True, refers=True, catches_up=True))
    assert after == Caches((19, 31), (40,))


def test_where_nobody_decodes_there_is_nothing_to_ask() -> None:
    guard = Asked(limit=0)
    assert admission(guard).make_room_for_rows(at_work(active=[prefill("c", 90)]), 0)
    assert not guard.steps


@pytest.mark.parametrize(
    ("fed", "blocks"), [((18, 21), 0), ((19, 21), 1), ((20, 21), 1), ((19, 20), 2)]
)
def test_a_block_is_cut_of_rows_that_are_about_to_complete_one_or_just_have(
    fed: tuple[int, int], blocks: int
) -> None:
    guard = Asked()
    work = AtWork([row("a", fed[0]), row("b", fed[1])], (), ())
    admission(guard).make_room_for_rows(work, 0)
    assert guard.steps[0][2] == Cuts(tokens=4 * blocks, checkpoints=0)


def test_rows_that_leave_are_cut_too() -> None:
    guard = Asked()
    admission(guard).make_room_for_rows(
        AtWork([row("a", 18)], (), (), ended=[row(name, 9) for name in "xyz"]), 0
    )
    assert guard.steps[0][2] == Cuts(tokens=12, checkpoints=3)


def test_nothing_is_cut_where_nothing_is_kept() -> None:
    guard = Asked()
    none = admission(guard, PrefixCache(NOTHING_KEPT, "none", ROOMY))
    none.make_room_for_rows(
        AtWork([row("a", 63)], (), (), ended=[row(name, 9) for name in "xyz"]), 0
    )
    none.make_room_for_chunk([], chunk(prefill("b", 90), 0, 64), NOBODY, 0)
    assert [cuts for _, _, cuts in guard.steps] == [Cuts(), Cuts()]


def test_a_chunk_on_its_way_is_one_more_prompt_to_hold() -> None:
    guard = Asked()
    long, other = prefill("a", 200, computed=64), prefill("b", 90, computed=32)
    work = at_work([row("c", 18)], [long, other])
    assert admission(guard).make_room_for_chunk([], chunk(long, 64, 128), work, 0)
    [(step, after, cuts)] = guard.steps
    assert step == StepShape(
        Decode(1, 18, grows=True, refers=True, catches_up=True), (Forward(1, 64, 64),)
    )
    assert after == Caches((18,), (32, 128))
    assert cuts == Cuts(tokens=64, checkpoints=1)


def test_a_last_chunk_makes_rows_of_all_its_choices() -> None:
    guard = Asked()
    several = prefill("a", 100, n=3, computed=64)
    work = at_work([row("c", 18)], [several])
    assert admission(guard).make_room_for_chunk([], chunk(several, 64, 99), work, 0)
    [(step, after, _)] = guard.steps
    assert step == StepShape(
        Decode(4, 99, grows=True, refers=True, catches_up=True), (Forward(1, 35, 64),)
    )
    assert after == Caches((18, 99, 99, 99), ())


def test_without_rows_there_is_no_decode() -> None:
    guard = Asked()
    long = prefill("a", 200)
    admission(guard).make_room_for_chunk([], chunk(long, 0, 64), at_work(active=[long]), 0)
    assert guard.steps[0][:2] == (StepShape(None, (Forward(1, 64, 0),)), Caches((), (64,)))


def test_what_is_planned_already_runs_in_the_same_step() -> None:
    """Two that joined are rows by now; the third is read in one forward with them."""
    guard = Asked()
    firsts, third = [prefill("a", 21), prefill("b", 22)], prefill("c", 23)
    planned = [chunk(p, 0, p.target) for p in firsts]
    work = at_work([row("a", 20), row("b", 21)], [third])
    assert admission(guard).make_room_for_chunk(planned, chunk(third, 0, 22), work, 0)
    [(step, after, cuts)] = guard.steps
    assert step.prefills == (Forward(3, 22, 0),)
    assert after == Caches((20, 21, 22))
    assert cuts == Cuts(tokens=20 + 21 + 22 + 4, checkpoints=3)


def test_groups_are_told_by_their_rows_longest_chunk_and_deepest_start() -> None:
    a, b, c = prefill("a", 200), prefill("b", 200), prefill("c", 200)
    groups = [(chunk(a, 0, 20), chunk(b, 40, 50)), (chunk(c, 7, 7),)]
    assert group_shapes(groups) == (Forward(2, 20, 40), Forward(1, 0, 7))
    restored = replace(chunk(b, 40, 50), restored=40)
    assert group_shapes([(chunk(a, 0, 20), restored)]) == (Forward(2, 20, 40, refers=True),)


def test_who_is_let_in_fits_beside_all_when_these_are_prefilled() -> None:
    guard = Asked()
    new, under_way = prefill("a", 100, n=2), prefill("b", 300, computed=50)
    work = at_work([row("c", 18), row("d", 30)], [under_way])
    assert lets_in(admission(guard), new, work, 0)
    assert guard.reservations == [(Caches((19, 31, 300, 100, 100)), 64)]
    [(step, _, _)] = guard.steps  # and a piece of it fits now
    assert step.prefills == (Forward(1, 64, 0),)


def test_the_piece_begins_where_the_cache_is_expected_to_end() -> None:
    guard = Asked()
    new = prefill("a", 100)
    new.expected = 80
    assert lets_in(admission(guard), new, at_work([row("c", 18)]), 0)
    assert guard.steps[0][0].prefills == (Forward(1, 19, 80, refers=True),)


@pytest.mark.parametrize(("limit", "fits"), [(4600, True), (4400, False)])
def test_who_is_alone_is_let_in_if_it_fits_at_all(limit: int, fits: bool) -> None:
    guard = Asked(limit)
    assert lets_in(admission(guard), prefill("a", 100), NOBODY, 0) is fits
    assert guard.alone == [(Caches((100,)), 64)]
    assert not guard.reservations and not guard.steps


def test_beside_a_prompt_under_way_nobody_is_alone() -> None:
    guard = Asked()
    lets_in(admission(guard), prefill("a", 100), at_work(active=[prefill("b", 50)]), 0)
    assert guard.reservations == [(Caches((50, 100)), 64)] and not guard.alone


def test_who_is_not_promised_is_not_let_in_whatever_fits_now() -> None:
    guard = Asked(limit=8000)
    work = at_work([row("c", 18)])
    assert not lets_in(admission(guard), prefill("a", 100), work, 0)
    assert not guard.steps


def test_a_short_context_needs_a_short_chunk_only() -> None:
    guard = Asked()
    held = admission(guard)
    held.fits_alone(30, 2)
    held.fits_alone(300, 1)
    assert guard.alone == [(Caches((30, 30)), 30), (Caches((300,)), 64)]
    assert held.explain(300) == guard.explain(Caches((300,)), 64)


def test_leases_are_taken_from_the_others_when_nothing_else_is_left() -> None:
    of, guard = cache(), Asked(limit=3500)
    tokens = tuple(range(80))
    for stop in range(4, 81, 4):
        of.store_block(place(of.root(b""), tokens[:stop]), _block())
    handle = of.enter((*tokens, 1, 2, 3), b"", ())
    held = Admission(guard, of, Grouping())
    work = AtWork([row("a", 18)], (), [handle])
    assert of.index.nbytes == 800 and handle.leased
    assert held.make_room_for_rows(work, 0)
    assert not handle.leased and of.index.nbytes < 700


def test_they_stay_where_it_fits_as_it_is() -> None:
    of, guard = cache(), Asked()
    of.store_block(place(of.root(b""), (1, 2, 3, 4)), _block())
    handle = of.enter((1, 2, 3, 4, 5), b"", ())
    assert Admission(guard, of, Grouping()).make_room_for_rows(
        AtWork([row("a", 18)], (), [handle]), 0
    )
    assert handle.leased


# -- blocks in use -----------------------------------------------------------------------


def users(of: PrefixCache, name: str = "a", n: int = 1) -> PrefillState:
    """A prompt of 23 tokens, whose blocks are in memory."""
    tokens = make_request("a", 23, 9).tokens
    for stop in range(4, 21, 4):
        of.store_block(place(of.root(b""), tokens[:stop]), _block())
    request = make_request(name, 23, 9, n=n)
    sequences = [Sequence(SequenceId(request.id, choice), request) for choice in range(n)]
    handle = of.enter(tokens[:-1], b"", ())
    return PrefillState(sequences, 0, handle, expected=handle.known)


def begun(of: PrefixCache, prefill: PrefillState) -> PrefillState:
    prefill.computed = of.admit(prefill.handle).cached
    return prefill


def test_what_a_prompt_that_waits_would_use_is_live_when_it_is_let_in() -> None:
    of, guard = referring(), Asked()
    new = users(of, n=3)
    assert lets_in(admission(guard, of), new, at_work([row("c", 18)]), 0)
    assert guard.reservations == [
        (Caches((19, 22 + 1, 23, 23), in_blocks=60, block_bytes=200), 22),
    ]
    [(_, after, cuts)] = guard.steps
    assert after == Caches((18,), (22,), in_blocks=20, block_bytes=200, idle_bytes=200)
    assert cuts.refers


def test_blocks_that_are_in_use_already_are_counted_once() -> None:
    of, guard = referring(), Asked()
    first, new = begun(of, users(of)), users(of, "also a")
    work = at_work([row("c", 18)], [first])
    assert lets_in(admission(guard, of), new, work, 0)
    [(caches, _)] = guard.reservations
    assert caches == Caches((19, 23, 23), in_blocks=40, block_bytes=200)
    [(_, after, _)] = guard.steps
    assert after == Caches((18,), (20, 22), in_blocks=40, block_bytes=200)


def test_each_row_of_a_prompt_refers_to_its_blocks() -> None:
    of, guard = referring(), Asked()
    several = begun(of, users(of, n=3))
    assert admission(guard, of).make_room_for_chunk(
        [], chunk(several, 20, 22), at_work(active=[several]), 0
    )
    assert guard.steps[0][1] == Caches((22, 22, 22), in_blocks=60, block_bytes=200)


def test_rows_that_decode_refer_to_what_they_use() -> None:
    of, guard = referring(), Asked()
    prefill = begun(of, users(of))
    [sequence] = prefill.sequences
    sequence.fed, sequence.blocks = 22, of.uses.share(prefill.handle.blocks)
    of.leave(prefill.handle)
    assert admission(guard, of).make_room_for_rows(at_work([sequence]), 0)
    assert guard.steps[0][1] == Caches((23,), in_blocks=20, block_bytes=200)


def referring() -> PrefixCache:
    return PrefixCache(replace(LAYOUT, refers=True), "model", ROOMY)


def _block() -> Size:
    return Size(40, 1)


# -- a machine that is short of memory ---------------------------------------------------


def pressed(level: PressureLevel, taken: int = 0, available: int = 1 << 30) -> Asked:
    guard = Asked()
    guard.pressure = MemoryPressure(level, taken, available)
    return guard


def test_beside_others_nobody_comes_in_under_critical_pressure() -> None:
    new, work = prefill("a", 20), at_work([row("b", 9)])
    for level, may in ((PressureLevel.WARN, True), (PressureLevel.CRITICAL, False)):
        assert admission(pressed(level)).may_admit(new, work, 0) is may
        assert admission(pressed(level)).may_admit(new, at_work(active=[new]), 0) is may
    assert admission(pressed(PressureLevel.CRITICAL)).may_admit(new, NOBODY, 0)


def test_who_is_alone_comes_in_if_it_fits_in_what_the_machine_has() -> None:
    new = prefill("a", 1000)
    asked = pressed(PressureLevel.CRITICAL)
    least = next(
        nbytes for nbytes in range(0, 1 << 30, 4096) if _fits_in(asked, new, available=nbytes)
    )
    assert 1000 < least < 1 << 24
    guard = pressed(PressureLevel.CRITICAL, available=least - 8192)
    assert not admission(guard).may_admit(new, NOBODY, 0)
    guard.ledger = Ledger(guard.limit, blocks=guard.floor + 8192)
    assert admission(guard).may_admit(new, NOBODY, 0), "the hot tier can go"
    guard.pressure = MemoryPressure(PressureLevel.WARN, available=0)
    assert admission(guard).may_admit(new, NOBODY, 0)


def _fits_in(guard: Asked, new: PrefillState, available: int) -> bool:
    guard.pressure = MemoryPressure(PressureLevel.CRITICAL, available=available)
    return admission(guard).may_admit(new, NOBODY, 0)


def test_what_the_machine_has_taken_is_not_for_newcomers_beside_others() -> None:
    """Who is alone may use it: else it would wait as long as the machine is short."""
    new, work = prefill("a", 200), at_work([row("b", 9)])
    for taken, may in ((0, True), (1 << 30, False)):
        guard = pressed(PressureLevel.WARN, taken)
        assert admission(guard).may_admit(new, work, 0) is may
        assert admission(guard).may_admit(new, NOBODY, 0)
