"""Prompts that ask a store which can't be listed, and wait for what it has: they get it, or go on
without it, and leave nothing behind."""

import pytest

from omlx_server.core.blocks.block import CacheLayout
from omlx_server.core.blocks.lookup import PrefixHandle, find_restorable
from omlx_server.core.blocks.record import Record
from omlx_server.core.cold.index import ColdEntry, ColdIndex
from omlx_server.core.cold.read_ahead import ColdWaits, StoreQuery
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Miss
from tests.core.blocks.serving import TOKEN_BYTES, every_layout, press_out, serve
from tests.core.cache_walk import Kept, Prefill, Walk
from tests.core.cold.chains import check_cold_index
from tests.core.cold_walk import GAIN, ColdWalk, Hope, Stored
from tests.core.simulator import ROOMY

STEPS = 4_000  # times 8 walks
PROMPT = tuple(range(50))  # 12 blocks, a tail of one token, and the last one, not stored


class Server:
    """One of several that share a store; what another one computed is there."""

    def __init__(
        self, layout: CacheLayout, budget: HotBudget = ROOMY, listed: bool = False
    ) -> None:
        other = PrefixCache(layout, "model", ROOMY)
        serve(other, PROMPT)
        held = other.index.by_depth()
        self.store = {other.record(each).key: (other.record(each), each.size) for each in held}
        self.cold = ColdIndex(1 << 40, listed=listed)
        self.cache = PrefixCache(layout, "model", budget, self.cold)
        self.cold_waits = self.cache.read_ahead.waits

    def enter(self) -> PrefixHandle:
        return self.cache.enter(PROMPT[:-1], b"", ())

    def answer(self) -> list[StoreQuery]:
        """Say of all that is asked what is there."""
        questions = self.cold_waits.take_questions()
        for question in questions:
            for record in question.records:
                if record.key in self.store:
                    self.cold.discover(record)
            self.cache.note_answer(question.id)
        return questions

    def read(self, *records: Record) -> None:
        """Bring these, or else all that is wanted."""
        for record in records or self.cold_waits.take_reads():
            self.cache.promote(*self.store[record.key])

    def check_end(self) -> None:
        """Nobody waits, nobody is waited for."""
        assert nothing_in(self.cold_waits)
        assert not any(block.leases for block in self.cache.index.blocks())


def nothing_in(waits: ColdWaits) -> bool:
    return not (waits._reads or waits._waiting or waits._questions or waits._asking)


# -- by example --------------------------------------------------------------------------


@every_layout
def test_a_prompt_asks_then_reads_then_computes_nothing(layout: CacheLayout) -> None:
    server = Server(layout)
    handle = server.enter()
    assert handle.question and not handle.reading and server.cache.must_wait(handle)
    assert len(server.answer()) == 1
    assert not handle.question and len(handle.reading) >= 13
    assert server.cache.must_wait(handle)
    server.read()
    assert not server.cache.must_wait(handle)
    lookup = server.cache.admit(handle)
    assert (lookup.cached, lookup.miss) == (49, Miss.NONE)
    assert server.cache.stats.cold_hit_tokens == 49
    server.cache.leave(handle)
    server.check_end()


@every_layout
def test_a_store_that_was_listed_is_not_asked(layout: CacheLayout) -> None:
    handle = Server(layout, listed=True).enter()
    assert not handle.question and not handle.reading


@every_layout
@pytest.mark.parametrize("moment", ["asking", "asked", "reading", "read"])
def test_who_is_cancelled_leaves_nothing_behind(layout: CacheLayout, moment: str) -> None:
    server = Server(layout)
    cancelled = server.enter()
    if moment == "asking":
        server.cache.leave(cancelled)
        server.answer()
    elif moment == "asked":
        (question,) = server.cold_waits.take_questions()
        server.cache.leave(cancelled)
        server.cache.note_answer(question.id)
    else:
        server.answer()
        reads = server.cold_waits.take_reads()
        if moment == "read":
            server.read(*reads[:3])
            assert len(cancelled.leased) == 3
        server.cache.leave(cancelled)
        server.read(*reads)
        assert len(server.cache.index) == (3 if moment == "read" else 0)
    assert not (cancelled.question or cancelled.reading or cancelled.leased)
    server.check_end()


@every_layout
@pytest.mark.parametrize("one_leaves", [False, True])
def test_two_prompts_for_the_same_read_it_once(layout: CacheLayout, one_leaves: bool) -> None:
    server = Server(layout)
    one, two = server.enter(), server.enter()
    assert len(server.answer()) == 2
    reads = server.cold_waits.take_reads()
    assert len({record.key for record in reads}) == len(reads)
    if one_leaves:
        server.cache.leave(one)
    server.read(*reads)
    for handle in (one, two)[one_leaves:]:
        assert server.cache.admit(handle).cached == 49
        server.cache.leave(handle)
    server.check_end()


@every_layout
def test_who_comes_later_joins_what_is_being_read(layout: CacheLayout) -> None:
    """And what comes to it before what it follows is read once more."""
    server = Server(layout)
    one = server.enter()
    server.answer()
    reads = server.cold_waits.take_reads()
    two = server.enter()
    server.answer()
    assert server.cold_waits.take_reads() == []
    server.cache.leave(one)
    server.read(reads[1])
    again = server.cold_waits.take_reads()
    assert again == [reads[1]] and reads[1].key in two.reading
    server.read(reads[0], *again, *reads[2:])
    assert server.cache.admit(two).cached == 49
    server.cache.leave(two)
    server.check_end()


@every_layout
def test_when_one_is_not_read_those_before_it_are_used(layout: CacheLayout) -> None:
    server = Server(layout)
    handle = server.enter()
    server.answer()
    reads = server.cold_waits.take_reads()
    server.read(*reads[:6])
    server.cache.give_up(reads[6].key, "timeout")
    assert not server.cache.must_wait(handle) and handle.missed is Miss.LATE
    server.read(*reads[7:])  # they come for nobody
    lookup = server.cache.admit(handle)
    assert (lookup.cached, lookup.known) == (0 if layout.checkpointed else 24, 24)
    assert lookup.miss is Miss.LATE
    server.cache.leave(handle)
    server.check_end()


@every_layout
def test_reading_ends_when_more_came_than_there_is_room_for(layout: CacheLayout) -> None:
    """Sizes are not known before: what came in time is used."""
    block = 4 * TOKEN_BYTES
    server = Server(layout)
    server.cache.read_ahead.most_bytes = lambda: 5 * block
    handle = server.enter()
    server.answer()
    reads = server.cold_waits.take_reads()
    server.read(*reads[:5])
    assert handle.room == 0 and server.cache.must_wait(handle)
    server.read(reads[5])
    assert handle.room < 0 and not handle.reading and not server.cache.must_wait(handle)
    server.read(*reads[6:])
    assert server.cache.admit(handle).cached == (0 if layout.checkpointed else 24)
    server.cache.leave(handle)
    server.check_end()


@every_layout
@pytest.mark.parametrize("pressed", [False, True])
def test_what_was_computed_while_it_asked_is_not_read(layout: CacheLayout, pressed: bool) -> None:
    server = Server(layout)
    handle = server.enter()
    for record, size in list(server.store.values())[:4]:
        assert server.cache.insert(record, size)
    server.answer()
    reads = server.cold_waits.take_reads()
    assert [record.start for record in reads[:9]] == list(range(16, 52, 4))
    if pressed:
        press_out(server.cache)
    server.read(*reads)
    assert server.cache.lease_cached(handle) == 49


# -- at random ---------------------------------------------------------------------------


class SharedWalk(ColdWalk):
    """The walk over two tiers, where the lower one can't be listed: it has more than the index
    knows, and sometimes less, as others use it too."""

    def __init__(self, layout: int) -> None:
        super().__init__(layout)
        self.questions: dict[int, StoreQuery] = {}
        self.cold = ColdIndex(self._cold_budget(), listed=False)
        self.cache = self._fresh_cache()
        self.answered = self.stopped = 0

    def step(self) -> None:
        if self.rng.random() < 0.3:
            self.rng.choices([self.answer, self.forget, self.expire], [20, 2, 1])[0]()
            self._take_evicted()
            self._take_reads()
        super().step()

    def enter(self) -> None:
        before = list(self.prefills)
        Walk.enter(self)
        for prefill in self.prefills[len(before) :]:
            assert not (prefill.handle.question and prefill.handle.reading)
            if not prefill.handle.question:
                self._expect(prefill)

    def admit(self) -> None:
        everybody = self.prefills
        asking = [prefill for prefill in everybody if prefill.handle.question]
        assert all(p.handle.waiting and self.cache.must_wait(p.handle) for p in asking)
        self.prefills = [prefill for prefill in everybody if not prefill.handle.question]
        super().admit()
        self.prefills = everybody

    def answer(self) -> None:
        if not self.questions:
            return
        id = self.rng.choice(list(self.questions))
        question = self.questions.pop(id)
        if self.rng.random() < 0.9:  # else the store did not answer
            for record in question.records:
                if record.key in self.medium:
                    self.cold.discover(record)
        asked = [prefill for prefill in self.prefills if prefill.handle.question == id]
        self.cache.note_answer(id)
        for prefill in asked:
            assert not prefill.handle.question
            self.answered += 1
            self._expect(prefill)
            prefill.needs = {held.id for held in prefill.handle.leased}
            deepest = self.cache.index.match(prefill.handle.root, prefill.tokens).deepest()
            assert deepest in (None, *prefill.handle.leased), "it reads what nothing holds"

    def forget(self) -> None:
        """The index does not know any more what is there."""
        for key in self.rng.choices(list(self.medium), k=min(5, len(self.medium))):
            self.cold.forget(key)
            self.held.pop(key, None)

    def expire(self) -> None:
        """The store has removed what the index knows."""
        if self.medium:
            del self.medium[self.rng.choice(list(self.medium))]

    def restart_instance(self) -> None:
        super().restart_instance()
        self.questions = {}

    def restart_process(self) -> None:
        """All that is known is what was asked, and so nothing."""
        self.reads, self.held = {}, {}
        self.cold = ColdIndex(self._cold_budget(), listed=False)
        self.restart_instance()

    def check(self) -> None:
        Walk.check(self)
        check_cold_index(self.cold)
        assert {e.key: e.leases for e in self.cold.entries() if e.leases} == self.held
        for prefill in self.prefills:
            handle = prefill.handle
            assert handle.reading <= set(self.reads), "it waits for what nobody reads"
            assert not handle.question or handle.question in self.questions
            assert handle.waiting or not (handle.reading or handle.question)

    def check_end(self) -> None:
        while self.questions or self.reads:
            self.answer()
            self.deliver()
            self._take_evicted()
            self._take_reads()
        self.check()
        assert nothing_in(self.cache.read_ahead.waits)
        self.check_given_back()

    # -- inside --------------------------------------------------------------------------

    def _expect(self, prefill: Prefill) -> None:
        """It reads if and only if that pays, as far as the index knows now."""
        handle, goal = prefill.handle, self._naive_goal(prefill)
        match = self.cache.index.match(handle.root, handle.tokens)
        cached = find_restorable(match, self.cache.layout, len(handle.tokens)).cached
        pays = goal - cached >= GAIN
        ample = handle.room >= self.cold.nbytes
        assert not handle.reading or pays, "it reads what it cannot use"
        assert not ample or bool(handle.reading) == pays
        if handle.reading:
            self.recalled += 1
            self.hopes[id(prefill)] = Hope(goal if ample else 0)

    def _take_reads(self) -> None:
        for question in self.cache.read_ahead.waits.take_questions():
            self.questions[question.id] = question
            assert question.records and not any(
                record.key in self.cold for record in question.records
            )
        super()._take_reads()

    def _promote(self, stored: Stored, readers: list[Prefill]) -> None:
        super()._promote(stored, readers)
        self.cold.resize(stored.record.key, stored.kept.size.nbytes)
        full = [prefill for prefill in readers if prefill.handle.room < 0]
        assert not any(prefill.handle.reading for prefill in full), "it reads on without room"
        self._spoil(full)
        self.stopped += len(full)

    def _write(self, record: Record, kept: Kept) -> None:
        if record.key in self.medium or record.key not in self.cold:
            super()._write(record, kept)

    def _delete(self, gone: list[ColdEntry]) -> None:
        assert not any(entry.leases or entry.key in self.held for entry in gone)
        self.gone += len(gone)


@pytest.mark.parametrize("layout", range(4))
def test_a_store_that_others_share_is_the_naive_cache_as_far_as_it_is_known(layout: int) -> None:
    walks = [SharedWalk(layout), SharedWalk(layout + 4)]  # reads in order, and in any order
    for walk in walks:
        for number in range(STEPS):
            walk.step()
            if number % 5 == 0:
                walk.check()
        walk.check_end()
    for name in ("hits", "answered", "recalled", "fulfilled", "failed", "stopped"):
        assert sum(getattr(walk, name) for walk in walks) > 0, f"hardly anything was {name}"
