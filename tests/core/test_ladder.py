"""The ladder of relief, relief by relief and as a whole."""

from dataclasses import replace

import pytest

from omlx_server.core.blocks.block import Worth
from omlx_server.core.memory.guard import Caches, Relief
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.core.short import LIMITS, PLENTY, WIDE, Short, endless, id_of
from tests.core.simulator import HYBRID, TOKEN_BYTES


def reliefs(run: Short) -> list[Relief]:
    return [relief for relief in Relief if run.used[relief]]


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
    assert reliefs(run) == [Relief.POOL]
    assert run.cache.index.nbytes == kept


def test_a_pool_that_is_not_in_the_way_stays() -> None:
    run = Short()
    run.send("a")
    run.running("a")
    run.watch.begin(Ledger(PLENTY, live=run.device.live, pool=4000))
    run.scheduler.relieve(run.now)
    step = run.scheduler.schedule(run.now)
    assert step is not None and not step.drain_pool and not reliefs(run)


def test_then_superseded_states_go_and_no_block() -> None:
    run = Short(layout=HYBRID)
    for turn in range(1, 5):  # one conversation, of which all ends but the last are superseded
        run.send(f"{turn}a", length=20 * turn, max_tokens=3)
        run.finish()
    run.send("z", length=3, salt=b"other")
    run.running("z")
    index = run.cache.index
    states, blocks = index.checkpoint_count, len(index)
    assert index.order.next_checkpoint(Worth.SUPERSEDED) is not None
    run.watch.limit = index.nbytes + run.device.live + 2600
    run.step()
    assert reliefs(run) == [Relief.CHECKPOINTS]
    assert index.checkpoint_count < states and len(index) >= blocks


def test_then_blocks_go_and_no_more_than_are_needed() -> None:
    run = Short()
    fill(run, 8)
    run.send("a")
    run.running("a")
    kept = run.cache.index.nbytes
    run.watch.limit = kept + run.device.live + 2000
    run.step()
    assert reliefs(run) == [Relief.BLOCKS]
    assert 500 <= kept - run.cache.index.nbytes <= 1500
    assert run.rows == {"a"}


def test_blocks_go_before_a_prompt_is_read_in_smaller_pieces() -> None:
    run = Short(limits=WIDE)
    fill(run, 16)
    run.watch.limit = 22_000
    run.send("long", length=500, max_tokens=2)
    run.step()
    assert run.steps[-1].prefill_tokens == 499
    assert reliefs(run) == [Relief.BLOCKS]


def test_then_chunks_shrink_which_is_counted_once_a_step() -> None:
    run = Short(limits=WIDE)
    run.send("long", length=400, max_tokens=2)
    run.watch.limit = 8000
    run.step()
    assert run.steps[-1].prefill_tokens == 128  # for 512 and 256 there was too little
    assert reliefs(run) == [Relief.CHUNK] and run.used[Relief.CHUNK] == 1
    run.step()
    assert run.used[Relief.CHUNK] == 2
    run.finish_right()
    assert not run.used[Relief.PREEMPT] and not run.used[Relief.REJECT]


def test_a_newcomer_is_read_in_smaller_pieces_before_it_is_kept_out() -> None:
    run = Short(limits=WIDE)
    run.send("a", max_tokens=200)
    run.running("a")
    run.watch.limit = 15_000
    run.send("long", length=500, max_tokens=2)
    run.step()
    assert 64 <= run.steps[-1].prefill_tokens < 499
    assert reliefs(run) == [Relief.CHUNK]
    run.finish_right()


def test_then_nobody_new_is_let_in_while_those_at_work_go_on() -> None:
    run = Short()
    for name in "ab":
        run.send(name, max_tokens=100)
    run.running("a", "b")
    run.watch.limit = 9000
    run.send("late", length=30, max_tokens=300)  # a shorter one would go first
    paused = 0
    while {("a", 0), ("b", 0)} - set(run.finishes):
        run.step()
        paused += run.rows == {"a", "b"}
    assert 20 < run.used[Relief.PAUSE] <= paused + 2  # once for each look at the memory
    assert not run.used[Relief.PREEMPT]
    run.finish_right()


def test_reliefs_are_used_one_after_the_other_as_the_limit_comes_down() -> None:
    """Two rows, old conversations in the hot tier, and always a prompt that waits."""
    run = Short(limits=WIDE, layout=HYBRID)
    for turn in range(1, 9):
        run.send(f"{turn}a", length=40 * turn, max_tokens=3)
        run.finish()
    for name in "bc":
        run.send(name, max_tokens=4000)
    run.running("b", "c")
    run.used.clear()
    limit, seen = run.cache.index.nbytes + 30_000, list[Relief]()
    while Relief.REJECT not in seen:
        run.watch.limit = limit
        if not run.scheduler.load.waiting:
            run.scheduler.add(endless(f"{limit}", 100, 3, salt=b"%d" % limit, priority=1))
        run.step()
        seen += [relief for relief in reliefs(run) if relief not in seen]
        limit -= 50
    assert seen == [relief for relief in Relief if relief is not Relief.POOL]


def test_the_hot_tier_never_shrinks_below_its_floor() -> None:
    """But for a part of the block that went last."""
    run = Short(limits=WIDE)
    fill(run, 40)
    for name in "xyz":
        run.send(name, max_tokens=500)
    run.running("x", "y", "z")
    block = 4 * TOKEN_BYTES
    for limit in range(34_000, 7000, -100):
        run.watch.limit = limit
        run.step()
        assert run.cache.index.nbytes > limit // 20 - block
    assert run.used[Relief.BLOCKS] and run.used[Relief.PREEMPT]
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
    assert run.cache.index.nbytes < 1000 and not run.used[Relief.PREEMPT]
    run.watch.limit = PLENTY
    run.finish_right()


def test_a_large_prompt_is_let_in_though_smaller_ones_keep_coming() -> None:
    """Beside it there is room for nobody. It is passed for a time, by its length."""
    run = Short(memory=11_500, limits=LIMITS)
    for number in range(9000):
        if run.scheduler.load.waiting < 4:
            run.send(f"{number}s{chr(97 + number % 26)}", max_tokens=8)
        if number == 20:
            run.send("big", length=420, max_tokens=3)
        run.step()
        if ("big", 0) in run.finishes:
            break
    assert ("big", 0) in run.finishes
    assert run.used[Relief.PAUSE]
    run.finish_right()


def two_under_way() -> Short:
    """A long prompt and a shorter one that came later are read; nobody decodes. The beginning of
    the shorter one came from the cache."""
    run = Short(limits=SchedulerLimits(4, 50, 64, 64))
    run.send("oldy", length=20, max_tokens=2)
    run.finish()
    run.send("x", length=700, max_tokens=3)
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
    assert run.used[Relief.PREEMPT] == 1


def test_a_queue_that_does_not_fit_is_asked_once_not_each_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody fits beside the row at work; each of the queue is as long as the first, or longer."""
    run = Short(limits=replace(WIDE, max_batch_size=200))
    run.send("a", length=150, max_tokens=200)
    run.running("a")
    run.watch.limit = 10_000
    for number in range(100):
        run.send(f"long{number}", length=300 + number % 7, max_tokens=2, salt=b"%d" % number)
    asked = list[Caches]()
    can_reserve = run.watch.can_reserve

    def noted(caches: Caches, chunk: int, now: float, **options: bool) -> bool:
        asked.append(caches)
        return can_reserve(caches, chunk, now, **options)

    monkeypatch.setattr(run.watch, "can_reserve", noted)
    run.step()
    assert run.rows == {"a"} and reliefs(run) == [Relief.PAUSE]
    assert 0 < len(asked) <= 7
