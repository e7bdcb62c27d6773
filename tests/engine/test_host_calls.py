"""How many Python calls the mlx thread makes for a token of eight streams, the model's own aside.
Calls can be counted on any machine; what a call takes can't."""

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import pytest

from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.engine.messages import Outbound
from omlx_server.engine.step_loop import StepLoop
from tests.engine.running import make_instance
from tests.tiny_models import load_tiny

STREAMS = 8
TURNS = 100
QUEUE = 100
TURN_SECONDS = 0.005
MODEL = ("mlx_lm", "/mlx/")
LIMITS = SchedulerLimits(max_batch_size=STREAMS)


class Clock:
    """Moves on by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def calls_of(act: Callable[[], None]) -> int:
    """How many Python functions were called, those of the model and of MLX aside."""
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if event == "call" and not any(part in frame.f_code.co_filename for part in MODEL):
            count += 1

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture
def turned() -> Iterator[tuple[StepLoop, Callable[[int], None], list[Outbound]]]:
    """A step loop with eight rows that decode, what turns it, and its events."""
    clock, events = Clock(), list[Outbound]()

    def note(more: Sequence[Outbound]) -> None:
        events.extend(more)

    loop = StepLoop(make_instance(load_tiny("llama"), LIMITS), note, clock)

    def turn(count: int) -> None:
        for _ in range(count):
            clock.now += TURN_SECONDS
            loop.turn(is_only_model=True)

    for stream in range(STREAMS):
        sampling = SamplingParams(max_tokens=400, temperature=0)
        loop.admit(Request(RequestId(f"r{stream}"), (1, 2, stream), sampling))
    while len(loop.instance.scheduler.queues.running) < STREAMS:
        turn(1)
    turn(10)
    yield loop, turn, events
    loop.end("the test is over")


def test_a_token_takes_few_calls(
    turned: tuple[StepLoop, Callable[[int], None], list[Outbound]],
) -> None:
    """It was 160 when memory, reports and the queues were looked at in every step, and 63 when each
    row was asked for drafts, evictions and its place though there were none."""
    _, turn, events = turned
    before = len(events)
    count = calls_of(lambda: turn(TURNS))
    tokens = len(events) - before
    assert tokens == STREAMS * TURNS
    assert count / tokens < 61


def test_a_long_queue_costs_a_step_nothing(
    turned: tuple[StepLoop, Callable[[int], None], list[Outbound]],
) -> None:
    """No row is free: who waits is looked at when memory and reports are, not in every step."""
    loop, turn, _ = turned
    alone = calls_of(lambda: turn(TURNS))
    for number in range(QUEUE):
        loop.admit(Request(RequestId(f"w{number}"), (1, 2, 3), SamplingParams(max_tokens=4)))
    turn(1)
    beside = calls_of(lambda: turn(TURNS))
    assert beside - alone < QUEUE * TURNS
