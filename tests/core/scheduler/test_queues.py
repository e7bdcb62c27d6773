"""Where sequences are, by example: what the random tests of the scheduler can't tell apart."""

import pytest

from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.scheduler.queues import Roster
from omlx_server.core.scheduler.sequence import Prefill, Sequence
from omlx_server.core.step import Chunk
from tests.core.simulator import KV, ROOMY, make_request


def make_roster(length: int = 10, n: int = 1, width: int = 4) -> Roster:
    roster = Roster(PrefixCache(KV, "model", ROOMY))
    roster.add(make_request("a", length, 9, n=n), width)
    return roster


def begin(roster: Roster) -> Prefill:
    """The first that waits has its turn."""
    prefill = roster.waiting[0]
    roster._cache.admit(prefill.ticket)
    roster.activate(prefill)
    return prefill


def run(roster: Roster) -> Prefill:
    """The first that waits becomes rows."""
    prefill = begin(roster)
    prefill.computed = prefill.target
    roster.join(prefill)
    return prefill


def feed(sequence: Sequence, *tokens: int) -> None:
    for token in tokens:
        sequence.feed(0)
        sequence.in_flight -= 1
        sequence.output.append(token)


def test_choices_queue_in_groups_that_fit_together() -> None:
    roster = make_roster(n=5, width=2)
    assert [[s.id.choice for s in p.sequences] for p in roster.waiting] == [[0, 1], [2, 3], [4]]
    assert [p.order for p in roster.waiting] == [0, 1, 2]


def test_choices_that_are_taken_apart_wait_one_by_one_behind_the_others() -> None:
    roster = make_roster(n=3)
    roster.add(make_request("b", 5, 9), 1)
    roster.take_apart(roster.waiting[0])
    waiting = [(p.request.id, [s.id.choice for s in p.sequences]) for p in roster.waiting]
    assert waiting == [("b", [0]), ("a", [0]), ("a", [1]), ("a", [2])]
    roster.check_invariants()


def test_rows_count_from_when_their_prompt_is_read() -> None:
    roster = make_roster(n=3)
    assert roster.rows_taken == 0
    begin(roster)
    assert roster.rows_taken == 3
    prefill = roster.active[0]
    prefill.computed = prefill.target
    roster.join(prefill)
    assert roster.rows_taken == 3 and [s.fed for s in roster.running.values()] == [9, 9, 9]


def test_who_is_alone_has_rows_however_few_there_are() -> None:
    roster = make_roster(n=3)
    wide = roster.waiting[0]
    roster.add(make_request("b", 5, 9), 1)
    assert roster.has_rows_for(wide, 2)
    roster.activate(roster.waiting[1])
    assert [roster.has_rows_for(wide, most) for most in (3, 4)] == [False, True]


def test_a_row_goes_back_at_once_or_when_its_last_token_is_read() -> None:
    roster = make_roster(n=2)
    first, second = run(roster).sequences
    feed(first, 1, 2)
    second.feed(0)
    roster.preempt(first.id)
    roster.preempt(second.id)
    assert [p.sequences for p in roster.waiting] == [[first]]
    assert roster.waiting[0].context == (*first.request.tokens, 1, 2)
    assert roster.row(second.id) is second and roster.preempted
    roster.requeue_when_read(second)
    assert roster.preempted
    second.in_flight -= 1
    second.output.append(5)
    roster.requeue_when_read(second)
    assert not roster.preempted and roster.waiting[1].context[-1] == 5
    roster.requeue_when_read(second)  # a row that is not preempted stays where it is
    assert len(roster.waiting) == 2
    roster.check_invariants()


def test_what_it_has_computed_is_cut_before_it_is_dropped() -> None:
    roster = make_roster()
    [sequence] = run(roster).sequences
    feed(sequence, 1, 2)
    roster.preempt(sequence.id)
    drops, tails, ended = roster.take_drops()
    assert drops == (sequence.id,) and ended == [sequence]
    [tail] = tails
    assert (tail.id, tail.length, tail.cut.start, tail.cut.stop) == (sequence.id, 11, 8, 11)
    assert roster.take_drops() == ((), (), [])


def test_a_row_that_leaves_with_a_token_in_flight_is_cut_to_the_last_one_it_was_fed() -> None:
    """One less would cost the next turn a token: no answer would show it."""
    roster = make_roster(length=11)
    [sequence] = run(roster).sequences
    feed(sequence, 1, 2)
    sequence.feed(0)
    roster.remove(sequence)
    [tail] = roster.take_drops()[1]
    assert (tail.length, tail.cut.start, tail.cut.stop) == (13, 12, 13)
    assert sequence.fed_tokens(tail.cut.stop) == (*sequence.request.tokens, 1, 2)


def test_a_prompt_goes_back_with_all_its_choices_by_the_name_of_any() -> None:
    roster = make_roster(n=3)
    prefill = begin(roster)
    prefill.computed = 8
    roster.preempt(prefill.sequences[1].id)
    assert not roster.active
    [waiting] = roster.waiting
    assert waiting.sequences == prefill.sequences and waiting.computed == 0
    assert roster.take_drops() == ((prefill.key,), (), [])
    assert not prefill.ticket.claimed and not prefill.ticket.leased


def test_a_prompt_is_dropped_by_the_name_under_which_it_began() -> None:
    """The choice that gave it may be gone."""
    roster = make_roster(n=2)
    first, second = begin(roster).sequences
    roster.remove(first)
    roster.preempt(second.id)
    assert roster.take_drops()[0] == (first.id,)


def test_rows_whose_last_token_is_launched_leave_before_it_is_read() -> None:
    roster = make_roster()
    [sequence] = run(roster).sequences
    feed(sequence, *range(8))
    roster.retire_exhausted()
    assert roster.running
    sequence.feed(0)
    roster.retire_exhausted()
    assert not roster.running and roster.row(sequence.id) is sequence
    assert roster.take_drops()[0] == (sequence.id,)
    roster.remove(sequence)
    assert not list(roster.sequences()) and not roster.drops


@pytest.mark.parametrize("reuses", [True, False])
def test_who_could_not_be_read_waits_again(reuses: bool) -> None:
    roster = make_roster(n=2)
    prefill = run(roster)
    chunk = Chunk(prefill.key, 0, prefill.context[:9], prefill.joins())
    roster.remove(prefill.sequences[0])
    roster.compute_afresh(chunk, reuses=reuses)
    [waiting] = roster.waiting
    assert waiting.sequences == prefill.sequences[1:] and not roster.running
    assert waiting.ticket.reuses is reuses


def test_after_a_loss_everybody_waits_and_nobody_is_to_be_dropped() -> None:
    roster = make_roster()
    for name in "bcd":
        roster.add(make_request(name, 10, 9), 1)
    [running] = run(roster).sequences
    [preempted] = run(roster).sequences
    preempted.feed(0)
    roster.preempt(preempted.id)
    begin(roster).computed = 4
    assert roster.restart() == [running, preempted]
    assert {p.request.id for p in roster.waiting} == set("abcd")
    assert roster.take_drops() == ((), (), [])
    assert not any(s.in_flight for s in roster.sequences())
    assert not any(p.ticket.claimed for p in roster.waiting)
    roster.check_invariants()


def test_contradictions_are_found() -> None:
    roster = make_roster(n=2)
    roster.drops.append(run(roster).key)
    with pytest.raises(AssertionError, match="still live"):
        roster.check_invariants()
    roster.drops = []
    roster.waiting.append(Prefill(list(roster.running.values()), 9, roster._computed[0]))
    with pytest.raises(AssertionError, match="two places"):
        roster.check_invariants()
    roster.waiting[0].sequences = []
    with pytest.raises(AssertionError, match="without sequences"):
        roster.check_invariants()
    roster.waiting = []
    feed(next(iter(roster.running.values())), *range(10))
    with pytest.raises(AssertionError, match="too many"):
        roster.check_invariants()


def test_who_waits_has_computed_nothing() -> None:
    roster = make_roster()
    roster.waiting[0].computed = 4
    with pytest.raises(AssertionError, match="waiting but computed"):
        roster.check_invariants()
