"""Where sequences are, by example: what the random tests of the scheduler can't tell apart."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from omlx_server.core.blocks.block import Size
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.core.scheduler.sequence import PrefillState, Sequence
from omlx_server.core.step import Chunk
from tests.core.places import place
from tests.core.simulator import KV, ROOMY, make_request


def make_roster(length: int = 10, n: int = 1, width: int = 4) -> SequenceQueues:
    queues = SequenceQueues(PrefixCache(KV, "model", ROOMY))
    queues.add(make_request("a", length, 9, n=n), width)
    return queues


def begin(queues: SequenceQueues) -> PrefillState:
    """The first that waits has its turn."""
    prefill = queues.waiting[0]
    queues._cache.admit(prefill.handle)
    queues.activate(prefill)
    return prefill


def run(queues: SequenceQueues) -> PrefillState:
    """The first that waits becomes rows."""
    prefill = begin(queues)
    prefill.computed = prefill.target
    queues.join(prefill)
    return prefill


def feed(sequence: Sequence, *tokens: int) -> None:
    for token in tokens:
        sequence.feed()
        sequence.in_flight -= 1
        sequence.output.append(token)


def test_choices_queue_in_groups_that_fit_together() -> None:
    queues = make_roster(n=5, width=2)
    assert [[s.id.choice for s in p.sequences] for p in queues.waiting] == [[0, 1], [2, 3], [4]]
    assert [p.order for p in queues.waiting] == [0, 1, 2]


def test_choices_that_are_taken_apart_wait_one_by_one_behind_the_others() -> None:
    queues = make_roster(n=3)
    queues.add(make_request("b", 5, 9), 1)
    queues.take_apart(queues.waiting[0])
    waiting = [(p.request.id, [s.id.choice for s in p.sequences]) for p in queues.waiting]
    assert waiting == [("b", [0]), ("a", [0]), ("a", [1]), ("a", [2])]
    queues.check_invariants()


def test_rows_count_from_when_their_prompt_is_read() -> None:
    queues = make_roster(n=3)
    assert queues.rows_taken == 0
    begin(queues)
    assert queues.rows_taken == 3
    prefill = queues.active[0]
    prefill.computed = prefill.target
    queues.join(prefill)
    assert queues.rows_taken == 3 and [s.fed for s in queues.running.values()] == [9, 9, 9]


def test_who_is_alone_has_rows_however_few_there_are() -> None:
    queues = make_roster(n=3)
    wide = queues.waiting[0]
    queues.add(make_request("b", 5, 9), 1)
    assert queues.has_rows_for(wide, 2)
    queues.activate(queues.waiting[1])
    assert [queues.has_rows_for(wide, most) for most in (3, 4)] == [False, True]


def test_a_row_goes_back_at_once_or_when_its_last_token_is_read() -> None:
    queues = make_roster(n=2)
    first, second = run(queues).sequences
    feed(first, 1, 2)
    second.feed()
    queues.preempt(first.id)
    queues.preempt(second.id)
    assert [p.sequences for p in queues.waiting] == [[first]]
    assert queues.waiting[0].context == (*first.request.tokens, 1, 2)
    assert queues.row(second.id) is second and queues.preempted
    queues.requeue_when_read(second)
    assert queues.preempted
    second.in_flight -= 1
    second.output.append(5)
    queues.requeue_when_read(second)
    assert not queues.preempted and queues.waiting[1].context[-1] == 5
    queues.requeue_when_read(second)  # a row that is not preempted stays where it is
    assert len(queues.waiting) == 2
    queues.check_invariants()


def test_what_it_has_joined_is_cut_before_it_is_dropped() -> None:
    queues = make_roster()
    [sequence] = run(queues).sequences
    feed(sequence, 1, 2)
    queues.preempt(sequence.id)
    drops, tails, ended = queues.take_drops()
    assert drops == (sequence.id,) and ended == [sequence]
    [tail] = tails
    assert (tail.id, tail.length, tail.cut.start, tail.cut.stop) == (sequence.id, 11, 8, 11)
    assert queues.take_drops() == ((), (), [])


def test_a_row_that_leaves_with_a_token_in_flight_is_cut_to_the_last_one_it_was_fed() -> None:
    """One less would cost the next turn a token: no answer would show it."""
    queues = make_roster(length=11)
    [sequence] = run(queues).sequences
    feed(sequence, 1, 2)
    sequence.feed()
    queues.remove(sequence)
    [tail] = queues.take_drops()[1]
    assert (tail.length, tail.cut.start, tail.cut.stop) == (13, 12, 13)
    fed = (*sequence.request.tokens, 1, 2)
    assert sequence.place(tail.cut, 4) == place(queues._cache.root(b""), fed)


def test_a_prompt_goes_back_with_all_its_choices_by_the_name_of_any() -> None:
    queues = make_roster(n=3)
    prefill = begin(queues)
    prefill.computed = 8
    queues.preempt(prefill.sequences[1].id)
    assert not queues.active
    [waiting] = queues.waiting
    assert waiting.sequences == prefill.sequences and waiting.computed == 0
    assert queues.take_drops() == ((prefill.key,), (), [])
    assert not prefill.handle.claimed and not prefill.handle.leased


def test_a_prompt_is_dropped_by_the_name_under_which_it_began() -> None:
    """The choice that gave it may be gone."""
    queues = make_roster(n=2)
    first, second = begin(queues).sequences
    queues.remove(first)
    queues.preempt(second.id)
    assert queues.take_drops()[0] == (first.id,)


def test_rows_whose_last_token_is_launched_leave_before_it_is_read() -> None:
    queues = make_roster()
    [sequence] = run(queues).sequences
    feed(sequence, *range(8))
    queues.retire_exhausted()
    assert queues.running
    sequence.feed()
    queues.retire_exhausted()
    assert not queues.running and queues.row(sequence.id) is sequence
    assert queues.take_drops()[0] == (sequence.id,)
    queues.remove(sequence)
    assert not list(queues.sequences()) and not queues.drops


@pytest.mark.parametrize("reuses", [True, False])
def test_who_could_not_be_read_waits_again(reuses: bool) -> None:
    queues = make_roster(n=2)
    prefill = run(queues)
    chunk = Chunk(prefill.key, 0, prefill.context[:9], prefill.joins())
    queues.remove(prefill.sequences[0])
    queues.compute_afresh(chunk, reuses=reuses)
    [waiting] = queues.waiting
    assert waiting.sequences == prefill.sequences[1:] and not queues.running
    assert waiting.handle.reuses is reuses


def test_after_a_loss_everybody_waits_and_nobody_is_to_be_dropped() -> None:
    queues = make_roster()
    for name in "bcd":
        queues.add(make_request(name, 10, 9), 1)
    [running] = run(queues).sequences
    [preempted] = run(queues).sequences
    preempted.feed()
    queues.preempt(preempted.id)
    begin(queues).computed = 4
    assert queues.restart() == [running, preempted]
    assert {p.request.id for p in queues.waiting} == set("abcd")
    assert queues.take_drops() == ((), (), [])
    assert not any(s.in_flight for s in queues.sequences())
    assert not any(p.handle.claimed for p in queues.waiting)
    queues.check_invariants()


def test_contradictions_are_found() -> None:
    queues = make_roster(n=2)
    queues.drops.append(run(queues).key)
    with pytest.raises(AssertionError, match="still live"):
        queues.check_invariants()
    queues.drops = []
    queues.waiting.append(PrefillState(list(queues.running.values()), 9, queues._joined[0]))
    with pytest.raises(AssertionError, match="two places"):
        queues.check_invariants()
    queues.waiting[0].sequences = []
    with pytest.raises(AssertionError, match="without sequences"):
        queues.check_invariants()
    queues.waiting = []
    feed(next(iter(queues.running.values())), *range(10))
    with pytest.raises(AssertionError, match="too many"):
        queues.check_invariants()


def test_who_waits_has_joined_nothing() -> None:
    queues = make_roster()
    queues.waiting[0].computed = 4
    with pytest.raises(AssertionError, match="waiting but computed"):
        queues.check_invariants()


# -- blocks in use -----------------------------------------------------------------------

TOKENS = make_request("a", 10, 9).tokens


def make_users(n: int = 1) -> SequenceQueues:
    """A prompt whose caches refer to the two blocks that are there of it."""
    cache = PrefixCache(replace(KV, refers=True), "model", ROOMY)
    for stop in (4, 8):
        cache.store_block(place(cache.root(b""), TOKENS[:stop]), Size(40, 1))
    queues = SequenceQueues(cache)
    queues.add(make_request("a", 10, 9, n=n), 4)
    return queues


def in_use(queues: SequenceQueues) -> int:
    index = queues._cache.index
    index.check_invariants()
    return index.in_use


def last_chunk(prefill: PrefillState) -> Chunk:
    return Chunk(prefill.key, 8, prefill.context[8:9], prefill.joins())


def test_rows_use_the_blocks_of_their_prompt_until_the_last_of_them_leaves() -> None:
    queues = make_users(n=2)
    assert in_use(queues) == 0
    first, other = run(queues).sequences
    queues.leave_joined()
    assert in_use(queues) == 80
    queues.remove(first)
    assert in_use(queues) == 80
    queues.remove(other)
    assert in_use(queues) == 0


@pytest.mark.parametrize(
    "leave",
    [
        lambda queues, prefill: queues.preempt(prefill.key),
        lambda queues, prefill: queues.preempt_lost([prefill.key]),
        lambda queues, prefill: queues.restart(),
        lambda queues, prefill: queues.compute_afresh(last_chunk(prefill), reuses=True),
        lambda queues, prefill: queues.remove(prefill.sequences[0]),
    ],
    ids=["preempt", "lost", "restart", "afresh", "remove"],
)
@pytest.mark.parametrize("go", [begin, run], ids=["prefill", "row"])
def test_who_is_not_at_work_any_more_uses_nothing(
    go: Callable[[SequenceQueues], PrefillState],
    leave: Callable[[SequenceQueues, PrefillState], None],
) -> None:
    queues = make_users()
    prefill = go(queues)
    assert in_use(queues) == 80
    leave(queues, prefill)
    queues.leave_joined()
    assert in_use(queues) == 0


def test_a_row_that_is_lost_when_it_has_left_stays_gone() -> None:
    queues = make_users()
    prefill = run(queues)
    queues.remove(prefill.sequences[0])
    queues.preempt_lost([prefill.key])
    assert not list(queues.sequences())


def test_who_comes_from_another_scheduler_uses_nothing_of_it() -> None:
    queues, others = make_users(), make_users()
    [row] = run(others).sequences
    queues.take_in(others.groups())
    assert not row.blocks.path and in_use(queues) == 0
