"""What the scheduler makes of two owners who compete for the time."""

import pytest

from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.core.clocked import Clocked, Pace
from tests.core.simulator import make_request

BUSY, OTHER = b"busy", b"other"
LIMITS = SchedulerLimits(
    max_batch_size=4, max_queue=200, prefill_chunk_tokens=8, max_batched_tokens=8
)


def flood(run: Clocked, owner: bytes, count: int, length: int = 9) -> None:
    for number in range(count):
        name = f"{owner.decode()}{number}"
        run.send(make_request(name, length, 3, arrived=run.now, owner=owner))


def chunks_before_the_single_one(busy: bytes, other: bytes) -> int:
    """`busy` has sent fifty prompts when `other` comes with one that is twice as long."""
    run = Clocked(LIMITS, Pace(token=0.01, decode=0.001))
    flood(run, busy, 50)
    for _ in range(8):
        run.turn()
    begun = run.chunks_run
    run.send(make_request("single", 17, 3, arrived=run.now, owner=other))
    while ("single", 0) not in run.times:
        run.turn()
    return run.chunks["single", 0][0] - begun


def test_fifty_prompts_of_one_do_not_delay_the_single_one_of_another() -> None:
    assert chunks_before_the_single_one(BUSY, OTHER) <= 3  # two are its own


def test_who_was_served_first_does_not_go_first_for_ever() -> None:
    """Fifty against fifty, one of them a moment later: from then on they take turns."""
    run = Clocked(LIMITS, Pace(token=0.01, decode=0.001))
    flood(run, BUSY, 50)
    run.turn()
    flood(run, OTHER, 50)
    for _ in range(60):
        run.turn()
    assert run.given(OTHER) > 1
    assert run.given(BUSY) == pytest.approx(run.given(OTHER), rel=0.2)
    run.finish()


@pytest.mark.parametrize("decode", [0.001, 0.02])
def test_two_who_are_always_busy_get_the_same_time(decode: float) -> None:
    """One sends prompts that are four times as long, the other wants longer answers."""
    run = Clocked(LIMITS, Pace(token=0.01, decode=decode))
    for turn in range(600):
        for owner, length, max_tokens in ((BUSY, 33, 2), (OTHER, 9, 6)):
            for number in range(4 - queued(run, owner)):
                name = f"{owner.decode()}-{turn}-{number}"
                run.send(make_request(name, length, max_tokens, arrived=run.now, owner=owner))
        run.turn()
    assert run.given(BUSY) == pytest.approx(run.given(OTHER), rel=0.1)


def queued(run: Clocked, owner: bytes) -> int:
    """How many requests of an owner gave no token yet."""
    return sum(
        id[0].startswith(owner.decode()) and id not in run.outputs and id not in run.finishes
        for id in run.sent
    )


@pytest.mark.parametrize("seconds", [1, 600])
def test_what_somebody_had_before_does_not_shut_him_out(seconds: int) -> None:
    run = Clocked(LIMITS, Pace(token=0.01, decode=0.001))
    flood(run, BUSY, 60, length=33)
    while run.turn():
        pass
    had = run.given(BUSY)
    run.now += seconds
    flood(run, OTHER, 60, length=33)
    for number in range(60):
        run.send(make_request(f"again{number}", 33, 3, arrived=run.now, owner=BUSY))
    for _ in range(60):
        run.turn()
    assert run.given(OTHER) > 1
    assert run.given(BUSY) - had == pytest.approx(run.given(OTHER), rel=0.2)
