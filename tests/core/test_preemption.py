"""Memory that runs short, one situation at a time: who makes room, who waits, who ends.

A token takes 10 bytes in a cache, and the planner keeps 256 more of them for each row; a decode
takes 100 bytes a row for itself, a chunk 10 a token.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from omlx_server.core.eviction import Budget
from omlx_server.core.layout import CacheLayout
from omlx_server.core.limits import Limits
from omlx_server.core.memory.guard import Guard, Rung
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.request import FinishReason, Rejected, Request, RequestId, SamplingParams
from omlx_server.core.step import Chunk, SequenceId, Step
from tests.core.simulator import (
    HYBRID,
    KV,
    ROOMY,
    TOKEN_BYTES,
    Device,
    Done,
    Made,
    Run,
    make_request,
    right_answer,
)

LIMITS = Limits(max_batch_size=4, max_queue=50, prefill_chunk_tokens=8, max_batched_tokens=32)
WIDE = Limits(max_batch_size=4, prefill_chunk_tokens=512, max_batched_tokens=512)
PLENTY = 1 << 30


class _Logged(Device):
    """Remembers its steps. Under pressure chunks may end on a smaller grid."""

    def __init__(self, limits: Limits, layout: CacheLayout) -> None:
        super().__init__(limits, layout)
        self.steps: list[Step] = []
        self._widest = limits

    def execute(self, step: Step) -> Done:
        self.steps.append(step)
        return super().execute(step)

    def run_chunks(self, step: Step) -> list[Made]:
        widest = self._widest.prefill_chunk_tokens
        grids = [size for size in (512, 256, 128, 64) if size < widest]
        ends = [chunk.stop for chunk in step.chunks if not chunk.joins and not _marked(chunk)]
        grid = next(g for g in (widest, *grids) if not any(end % g for end in ends))
        self.limits = replace(self._widest, prefill_chunk_tokens=grid)
        return super().run_chunks(step)


def _marked(chunk: Chunk) -> bool:
    return any(cut.worth is not None and cut.stop == chunk.stop for cut in chunk.cuts)


class Short(Run):
    """A run whose memory a test bounds. Requests are not ended by stop tokens."""

    def __init__(
        self,
        memory: int = PLENTY,
        limits: Limits = LIMITS,
        layout: CacheLayout | None = KV,
        budget: Budget = ROOMY,
    ) -> None:
        super().__init__(limits, layout, budget, memory)
        assert self.guard is not None
        self.watch: Guard = self.guard
        self.used = self.watch.used
        self._logged = self.device = _Logged(limits, layout or KV)
        self._sent: list[Request] = []

    def send(self, name: str, length: int = 10, max_tokens: int = 60, **changes: Any) -> Request:
        request = endless(name, length, max_tokens, **{"arrived": self.now, **changes})
        assert self.scheduler.add(request, self.now) is None
        self._sent.append(request)
        return request

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(2000):
            if condition():
                return
            self.step()
        raise AssertionError("it did not happen")

    def running(self, *names: str) -> None:
        """Until exactly these decode."""
        self.until(lambda: set(names) == self.rows)

    @property
    def rows(self) -> set[str]:
        return {id.request for id in self.device.rows}

    @property
    def steps(self) -> list[Step]:
        return self._logged.steps

    def finish_right(self) -> None:
        """Everybody gets a whole and right answer."""
        self.finish()
        for request in self._sent:
            for choice in range(request.n):
                output, finish = right_answer(request, choice)
                assert self.outputs[request.id, choice] == output
                assert self.finishes[request.id, choice] is finish


def endless(name: str, length: int, max_tokens: int, **changes: Any) -> Request:
    request = make_request(name, length, max_tokens, **changes)
    return replace(request, sampling=SamplingParams(max_tokens=max_tokens))


def three(**priorities: int) -> Short:
    """a, b and c decode; they came in this order."""
    run = Short()
    for name in "abc":
        run.send(name, priority=priorities.get(name, 0))
        run.step()
    run.running("a", "b", "c")
    for _ in range(5):
        run.step()
    return run


ROOM_FOR_ONE, ROOM_FOR_TWO = 4000, 7000
"""With rows of 20 to 80 tokens."""


# -- who makes room ----------------------------------------------------------------------


def test_the_newest_goes_first_and_no_more_than_have_to() -> None:
    run = three()
    run.watch.limit = ROOM_FOR_TWO
    run.step()
    assert run.rows == {"a", "b"}
    run.watch.limit = ROOM_FOR_ONE
    run.step()
    assert run.rows == {"a"}
    assert run.used[Rung.PREEMPT] == 2 and not run.finishes
    run.watch.limit = PLENTY
    run.finish_right()


def test_the_last_class_goes_before_newer_ones_of_a_better() -> None:
    run = three(a=1, b=2)
    run.watch.limit = ROOM_FOR_TWO
    run.step()
    assert run.rows == {"a", "c"}
    run.watch.limit = ROOM_FOR_ONE
    run.step()
    assert run.rows == {"c"}
    run.watch.limit = PLENTY
    run.finish_right()


def test_of_one_request_the_last_choices_go_first_and_each_by_itself() -> None:
    run = Short()
    run.send("a", n=3)
    run.until(lambda: len(run.device.rows) == 3)
    for _ in range(5):
        run.step()
    run.watch.limit = ROOM_FOR_TWO
    run.step()
    assert {id.choice for id in run.device.rows} == {0, 1}
    run.watch.limit = ROOM_FOR_ONE
    run.step()
    assert {id.choice for id in run.device.rows} == {0}
    assert run.scheduler.load.waiting == 2
    run.watch.limit = PLENTY
    run.finish_right()


def test_its_unfinished_block_is_cut_before_it_is_dropped_and_it_goes_on_from_there() -> None:
    run = three()
    run.until(lambda: len(run.device.rows[id_of("c")]) % 4 == 3)  # two tokens beyond a block
    computed = run.computed
    had = len(run.device.rows[id_of("c")])
    run.watch.limit = ROOM_FOR_TWO
    run.step()
    [tail] = run.steps[-1].tails
    assert (tail.id, tail.length) == (id_of("c"), had - 1)
    assert run.steps[-1].drops == (id_of("c"),)
    run.watch.limit = PLENTY
    run.running("a", "b", "c")
    # One was in flight, and one is to be fed.
    assert run.computed - computed <= 2
    assert len(run.outputs["c", 0]) >= had - 10
    run.finish_right()


def id_of(name: str, choice: int = 0) -> SequenceId:
    return SequenceId(RequestId(name), choice)


def test_a_prompt_under_way_goes_before_older_rows_and_keeps_its_blocks() -> None:
    run = Short()
    run.send("a", max_tokens=100)
    run.running("a")
    long = run.send("long", length=101)
    run.until(lambda: len(run.device.prefills.get(id_of("long"), ())) >= 40)
    read = run.computed
    run.watch.limit = 4400
    run.step()
    assert run.steps[-1].drops == (id_of("long"),)
    assert run.scheduler.load.prefilling == 0 and run.used[Rung.PREEMPT] == 1
    kept = run.cache.probe(long.tokens, b"").cached
    assert kept > 0
    run.watch.limit = PLENTY
    run.running("a", "long")
    assert run.computed - read == 100 - kept
    run.finish_right()


def test_an_older_prompt_under_way_stays_where_a_newer_row_has_to_go() -> None:
    run = Short(limits=replace(LIMITS, eldest_share=0))
    run.send("x", length=81)
    run.step()
    run.send("y", length=3)
    run.running("y")
    assert run.device.prefills
    run.watch.limit = 4400
    run.step()
    assert not run.rows and run.device.prefills
    run.watch.limit = PLENTY
    run.finish_right()


def test_a_row_with_a_token_under_way_goes_back_when_it_is_read() -> None:
    run = three()
    run.watch.limit = ROOM_FOR_TWO
    run.now += 1
    run._watch_memory()
    assert run.scheduler.load.waiting == 1
    assert not run.scheduler.waiting_requests()
    run.step()
    run.watch.limit = PLENTY
    run.finish_right()


def test_who_is_cancelled_while_its_last_token_is_under_way_says_nothing_more() -> None:
    run = three()
    run.watch.limit = ROOM_FOR_TWO
    run._watch_memory()
    run.scheduler.cancel(RequestId("c"))
    said = len(run.outputs["c", 0])
    run.watch.limit = PLENTY
    run.finish()
    assert len(run.outputs["c", 0]) == said and ("c", 0) not in run.finishes
    assert set(run.finishes.values()) == {FinishReason.LENGTH}


def test_rows_that_no_longer_fit_because_they_grew_make_room_one_at_a_time() -> None:
    """No limit changes here: three answers of 700 tokens where there is room for two of that."""
    run = Short(memory=25_000, limits=WIDE)
    for name in "abc":
        run.send(name, max_tokens=700)
    run.running("a", "b", "c")
    run.running("a", "b")
    assert run.used[Rung.PREEMPT] == 1
    run.finish_right()
    assert run.used[Rung.PREEMPT] == 1 and not run.used[Rung.REJECT]


def test_a_limit_below_what_is_held_costs_no_more_rows_than_must_go() -> None:
    run = Short(limits=WIDE)
    for name in "abc":
        run.send(name, length=300, max_tokens=30)
    run.running("a", "b", "c")
    run.watch.limit = 9000  # they hold more; one of them would fit easily
    run.step()
    assert run.rows == {"a"} and not run.finishes


# -- who ends ----------------------------------------------------------------------------


def test_the_last_row_ends_as_at_its_limit_and_keeps_what_it_said() -> None:
    run = Short()
    request = run.send("a")
    run.running("a")
    for _ in range(9):
        run.step()
    run.watch.limit = 1000
    run.finish()
    said = run.outputs["a", 0]
    assert run.finishes["a", 0] is FinishReason.LENGTH
    assert said == right_answer(request, 0)[0][: len(said)] and len(said) >= 8
    assert run.used[Rung.REJECT] == 1 and not run.used[Rung.PREEMPT]


def who_waits_when_the_limit_falls(*, alone: bool) -> Short:
    run = Short(memory=20_000)
    if not alone:
        run.send("a")
        run.running("a")
    run.send("long", length=800, max_tokens=5)
    run.watch.limit = 10_000
    run.until(lambda: alone or ("a", 0) in run.finishes)
    run.step()
    run.step()
    return run


def test_who_has_not_begun_and_never_will_fit_ends() -> None:
    run = who_waits_when_the_limit_falls(alone=True)
    assert run.finishes == {("long", 0): FinishReason.MEMORY}
    assert not run.outputs and run.used[Rung.REJECT] == 1


def test_so_it_does_when_those_before_it_are_done() -> None:
    run = who_waits_when_the_limit_falls(alone=False)
    assert run.finishes.get(("long", 0)) is FinishReason.MEMORY


def test_that_end_tells_why() -> None:
    run = Short(memory=20_000)
    run.send("long", length=800, max_tokens=5)
    run.watch.limit = 10_000
    run.watch.begin(Ledger(10_000))
    [event] = run.scheduler.relieve(0)
    assert event.finish is FinishReason.MEMORY
    assert event.error.startswith("it needs 10.6 KB for its caches and 640 B for a step")
    assert event.error.endswith("held now: nothing held of 10 KB")
    assert not run.scheduler.has_work


def test_who_never_fits_is_refused_at_once_with_the_account() -> None:
    run = Short(memory=10_000)
    run.send("a")
    run.running("a")
    run.step()
    refused = run.scheduler.add(endless("long", 500, 5), 0)
    assert isinstance(refused, Rejected)
    assert (refused.request_id, refused.waiting, refused.retry_after) == ("long", 0, 0)
    # 500 tokens, 256 that it may grow by, 256 that its buffers may be larger
    assert refused.no_room.startswith("it needs 10.1 KB for its caches and 640 B for a step, ")
    assert "the hot tier keeps 500 B; held now: live " in refused.no_room
    assert refused.no_room.endswith("of 10 KB")
    assert run.used[Rung.REJECT] == 1
    run.finish_right()


def test_who_just_fits_is_taken() -> None:
    run = Short(memory=10_000)
    # 9,500 are left by the floor; a step takes 640.
    most = (10_000 - 500 - 640) // TOKEN_BYTES - 2 * 256
    assert run.scheduler.add(endless("more", most + 1, 5), 0) is not None
    run.send("most", length=most, max_tokens=5)
    run.finish_right()
    assert not run.used[Rung.PREEMPT]


def test_no_more_choices_run_together_than_ever_fit() -> None:
    run = Short(memory=15_000)
    run.send("a", n=5, max_tokens=20)
    run.finish_right()
    joins = [len(chunk.joins) for step in run.steps for chunk in step.chunks]
    assert sorted(joins) == [1, 2, 2]
    assert not run.used[Rung.PREEMPT]


def test_choices_that_wait_are_taken_apart_where_they_no_longer_fit_together() -> None:
    run = Short()
    run.send("a", length=3, n=3, max_tokens=20)
    run.watch.limit = 4000
    run.finish_right()
    assert not run.used[Rung.REJECT]


def test_an_answer_that_grows_out_of_the_memory_ends_and_others_take_its_place() -> None:
    run = Short(memory=12_000, limits=WIDE)
    run.send("a", max_tokens=2000)
    run.send("b", max_tokens=20)
    run.finish()
    assert run.finishes["a", 0] is FinishReason.LENGTH
    assert 700 < len(run.outputs["a", 0]) < 1200
    assert len(run.outputs["b", 0]) == 20


# -- the ladder --------------------------------------------------------------------------


def rungs(run: Short) -> list[Rung]:
    return [rung for rung in Rung if run.used[rung]]


def fill(run: Short, blocks: int) -> None:
    """Answers of long ago are in the hot tier."""
    for number in range(blocks):
        run.send(f"{number}old{chr(97 + number)}", length=40, max_tokens=2, salt=b"%d" % number)
    run.finish()


def test_freed_buffers_go_first_and_alone() -> None:
    run = Short()
    fill(run, 4)
    run.send("a")
    run.running("a")
    kept = run.cache.index.nbytes
    live = run.device.live
    run.watch.limit = kept + live + 5000
    run.watch.begin(Ledger(run.watch.limit, live=live, blocks=kept, pool=4000))
    assert not run.scheduler.relieve(run.now)
    step = run.scheduler.schedule(run.now)
    assert step is not None and step.drain_pool
    assert rungs(run) == [Rung.POOL]
    assert run.cache.index.nbytes == kept


def test_a_pool_that_is_not_in_the_way_stays() -> None:
    run = Short()
    run.send("a")
    run.running("a")
    run.watch.begin(Ledger(PLENTY, live=run.device.live, pool=4000))
    run.scheduler.relieve(run.now)
    step = run.scheduler.schedule(run.now)
    assert step is not None and not step.drain_pool and not rungs(run)


def test_then_superseded_states_go_and_no_block() -> None:
    run = Short(layout=HYBRID)
    for turn in range(1, 5):  # one conversation, of which all ends but the last are superseded
        run.send(f"{turn}a", length=20 * turn, max_tokens=3)
        run.finish()
    run.send("z", length=3, salt=b"other")
    run.running("z")
    index = run.cache.index
    states, blocks = index.checkpoint_count, len(index)
    assert index.has_superseded
    run.watch.limit = index.nbytes + run.device.live + 2600
    run.step()
    assert rungs(run) == [Rung.CHECKPOINTS]
    assert index.checkpoint_count < states and len(index) >= blocks


def test_then_blocks_go_and_no_more_than_are_needed() -> None:
    run = Short()
    fill(run, 8)
    run.send("a")
    run.running("a")
    kept = run.cache.index.nbytes
    run.watch.limit = kept + run.device.live + 2000
    run.step()
    assert rungs(run) == [Rung.BLOCKS]
    assert 500 <= kept - run.cache.index.nbytes <= 1500
    assert run.rows == {"a"}


def test_blocks_go_before_a_prompt_is_read_in_smaller_pieces() -> None:
    run = Short(limits=WIDE)
    fill(run, 16)
    run.watch.limit = 22_000
    run.send("long", length=500, max_tokens=2)
    run.step()
    assert run.steps[-1].prefill_tokens == 499
    assert rungs(run) == [Rung.BLOCKS]


def test_then_chunks_shrink_which_is_counted_once_a_step() -> None:
    run = Short(limits=WIDE)
    run.send("long", length=400, max_tokens=2)
    run.watch.limit = 8000
    run.step()
    assert run.steps[-1].prefill_tokens == 128  # for 512 and 256 there was too little
    assert rungs(run) == [Rung.CHUNK] and run.used[Rung.CHUNK] == 1
    run.step()
    assert run.used[Rung.CHUNK] == 2
    run.finish_right()
    assert not run.used[Rung.PREEMPT] and not run.used[Rung.REJECT]


def test_a_newcomer_is_read_in_smaller_pieces_before_it_is_kept_out() -> None:
    run = Short(limits=WIDE)
    run.send("a", max_tokens=200)
    run.running("a")
    run.watch.limit = 23_500
    run.send("long", length=500, max_tokens=2)
    run.step()
    assert 64 <= run.steps[-1].prefill_tokens < 499
    assert rungs(run) == [Rung.CHUNK]
    run.finish_right()


def test_then_nobody_new_is_let_in_while_those_at_work_go_on() -> None:
    run = Short()
    for name in "ab":
        run.send(name, max_tokens=100)
    run.running("a", "b")
    run.watch.limit = 9000
    run.send("late", length=30, max_tokens=5)
    paused = 0
    while {("a", 0), ("b", 0)} - set(run.finishes):
        run.step()
        paused += run.rows == {"a", "b"}
    assert 80 < run.used[Rung.PAUSE] <= paused + 2  # once a step
    assert not run.used[Rung.PREEMPT]
    run.finish_right()


def test_rungs_are_climbed_one_after_the_other_as_the_limit_comes_down() -> None:
    """Two rows, old conversations in the hot tier, and always a prompt that waits."""
    run = Short(limits=WIDE, layout=HYBRID)
    for turn in range(1, 9):
        run.send(f"{turn}a", length=40 * turn, max_tokens=3)
        run.finish()
    for name in "bc":
        run.send(name, max_tokens=4000)
    run.running("b", "c")
    run.used.clear()
    limit, seen = run.cache.index.nbytes + 30_000, list[Rung]()
    while Rung.REJECT not in seen:
        run.watch.limit = limit
        if not run.scheduler.load.waiting:
            run.scheduler.add(endless(f"{limit}", 100, 3, salt=b"%d" % limit), run.now)
        run.step()
        seen += [rung for rung in rungs(run) if rung not in seen]
        limit -= 50
    assert seen == [rung for rung in Rung if rung is not Rung.POOL]


def test_the_hot_tier_never_shrinks_below_its_floor() -> None:
    """But for a part of the block that went last."""
    run = Short(limits=WIDE)
    fill(run, 40)
    for name in "xyz":
        run.send(name, max_tokens=500)
    run.running("x", "y", "z")
    block = 4 * TOKEN_BYTES
    for limit in range(34_000, 9000, -100):
        run.watch.limit = limit
        run.step()
        assert run.cache.index.nbytes > limit // 20 - block
    assert run.used[Rung.BLOCKS] and run.used[Rung.PREEMPT]
    assert run.cache.index.nbytes < 1000
    run.watch.limit = PLENTY
    run.finish_right()


def test_rows_take_the_blocks_that_prompts_hold_while_they_wait() -> None:
    run = Short(limits=replace(LIMITS, max_batch_size=2))
    for name in "ab":
        run.send(f"old{name}", length=200, max_tokens=2)
        run.finish()
    for name in "xy":
        run.send(name, max_tokens=200)
    run.running("x", "y")
    for name in "ab":
        run.send(f"new{name}", length=250, max_tokens=5)  # goes on where the old one ended
    leased = [block for block in run.cache.index.blocks() if block.leases]
    assert len(leased) == 2
    run.watch.limit = run.device.live + 6000
    run.step()
    assert not any(block.leases for block in run.cache.index.blocks())
    assert run.cache.index.nbytes < 1000 and not run.used[Rung.PREEMPT]
    run.watch.limit = PLENTY
    run.finish_right()


def test_a_large_prompt_is_let_in_though_smaller_ones_keep_coming() -> None:
    """Beside it there is room for nobody. Those that came after it wait until it is in."""
    run = Short(memory=11_500, limits=LIMITS)
    for number in range(300):
        if run.scheduler.load.waiting < 4:
            run.send(f"{number}s{chr(97 + number % 26)}", max_tokens=8)
        if number == 20:
            run.send("big", length=420, max_tokens=3)
        run.step()
        if ("big", 0) in run.finishes:
            break
    assert ("big", 0) in run.finishes
    assert run.used[Rung.PAUSE] and not run.used[Rung.PREEMPT]
    run.finish_right()


def two_under_way() -> Short:
    """A long prompt and a shorter one that came later are read; nobody decodes. The beginning of
    the shorter one came from the cache."""
    run = Short(limits=Limits(4, 50, 64, 64, eldest_share=0))
    run.send("oldy", length=20, max_tokens=2)
    run.finish()
    run.send("x", length=600, max_tokens=3)
    run.step()
    run.step()
    run.send("y", length=300, max_tokens=3)
    run.step()
    assert {id.request for id in run.device.prefills} == {"x", "y"}
    return run


def test_of_prompts_that_hold_each_other_up_the_first_goes_on() -> None:
    run = two_under_way()
    assert any(block.leases for block in run.cache.index.blocks())
    run.watch.limit = 6000
    run.step()
    assert [chunk.prefill for chunk in run.steps[-1].chunks] == [id_of("y")]
    assert run.scheduler.load.waiting == 1
    assert not any(block.leases for block in run.cache.index.blocks())
    run.step()
    assert set(run.device.prefills) == {id_of("y")}
    run.watch.limit = PLENTY
    run.finish_right()


def test_it_goes_on_when_the_others_have_made_room() -> None:
    run = two_under_way()
    run.watch.limit = 6000
    run.step()
    assert run.steps[-1].drops == (id_of("x"),)


def test_the_others_are_counted_as_preempted() -> None:
    run = two_under_way()
    run.watch.limit = 6000
    run.step()
    assert run.used[Rung.PREEMPT] == 1


# -- deadlines and missing memory --------------------------------------------------------


def test_a_deadline_ends_who_was_preempted_and_who_was_not_let_in() -> None:
    run = Short()
    for name, deadline in (("a", None), ("b", None), ("c", 30.0)):
        run.send(name, deadline=deadline)
    run.running("a", "b", "c")
    run.step()
    run.watch.limit = ROOM_FOR_TWO
    run.step()
    run.send("late", deadline=35.0)
    said = len(run.outputs["c", 0])
    while run.now < 50:
        run.step()
        assert (("c", 0) in run.finishes) == (run.now >= 30)
        assert (("late", 0) in run.finishes) == (run.now >= 35)
    assert run.finishes == {("c", 0): FinishReason.DEADLINE, ("late", 0): FinishReason.DEADLINE}
    assert len(run.outputs["c", 0]) <= said + 1 and ("late", 0) not in run.outputs
    run.finish()
    assert len(run.outputs["a", 0]) == len(run.outputs["b", 0]) == 60


def test_a_deadline_ends_who_was_preempted_a_moment_ago() -> None:
    run = Short()
    for name, deadline in (("a", None), ("b", 20.0)):
        run.send(name, deadline=deadline)
    run.running("a", "b")
    for _ in range(3):
        run.step()
    run.watch.limit = ROOM_FOR_ONE
    run._watch_memory()
    run.note(run.scheduler.expire(20))
    said = len(run.outputs["b", 0])
    run.finish()
    assert run.finishes == {("a", 0): FinishReason.LENGTH, ("b", 0): FinishReason.DEADLINE}
    assert len(run.outputs["b", 0]) == said


def test_where_memory_was_missing_all_choices_of_the_newest_at_work_end() -> None:
    run = Short(limits=replace(LIMITS, max_batch_size=3))
    run.send("a")
    run.step()
    run.send("b", n=3)
    run.until(lambda: len(run.device.rows) == 3)
    run.send("c")
    events = run.scheduler.fail_newest()
    assert {(e.request_id, e.index, e.finish) for e in events} == {
        ("b", choice, FinishReason.MEMORY) for choice in range(3)
    }
    assert all("it needs" in event.error for event in events)
    run.note(events)
    run.finish()
    assert run.finishes["a", 0] is run.finishes["c", 0] is FinishReason.LENGTH


def test_where_nobody_is_at_work_nobody_ends() -> None:
    run = Short()
    run.send("a")
    assert run.scheduler.fail_newest() == []
    run.finish_right()
