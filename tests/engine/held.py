"""What the laws of liveness look at: who could go on, what is still held, what has crashed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from omlx_server.core.blocks.block import Block, Checkpoint
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.scheduler.queues import SequenceQueues, exhausted_rows
from omlx_server.core.scheduler.sequence import PrefillState
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.step_loop import StepLoop


def could_go_on(step_loop: StepLoop) -> bool:
    """Whether a step of this instance would decode or read, if it were planned now. While another
    model is at work the guard may keep it from that; it will not stay so."""
    instance = step_loop.instance
    queues = instance.scheduler.queues
    if step_loop.failed or (instance.watch is not None and instance.watch.guard.shares_memory):
        return False
    if queues.active or len(exhausted_rows(queues.running.values())) < len(queues.running):
        return True
    fits = instance.scheduler.admission.fits_alone  # who does not will end
    return any(
        fits(len(prefill.context) + 1, 1) and _is_free(prefill, queues, instance.cache)
        for prefill in queues.waiting
    )


def _is_free(prefill: PrefillState, queues: SequenceQueues, cache: PrefixCache) -> bool:
    """Whether it waits for nobody but its turn: for no block, and for no row that leaves."""
    leaving = [*queues.ended, *queues.running.values()]
    follows = any(
        prefill.context[: len(row.request.tokens)] == row.request.tokens for row in leaving
    )
    return not follows and not cache.must_wait(prefill.handle)


def check_kept(instance: ModelInstance) -> None:
    cache = instance.cache
    pinned = (
        {id(held) for held in cache.pinned._held.values()} if cache.layout.keeps else set[int]()
    )
    for block in cache.index.blocks():
        everything: list[Block | Checkpoint] = [block, *block.checkpoints.values()]
        for held in everything:
            assert held.leases == (id(held) in pinned), "a lease was forgotten"
    assert not cache._claims and not cache._active, "a claim was forgotten"
    waits = cache.read_ahead.waits
    assert not waits._asking and not any(waits._waiting.values()), "a handle was forgotten"


class _Crashes(logging.Handler):
    """What the engine has survived, but for planted crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and str(error) != "planted":
            self.found.append(error)


@contextmanager
def crashes() -> Iterator[list[BaseException]]:
    handler, log = _Crashes(), logging.getLogger("omlx_server")
    log.addHandler(handler)
    propagates, log.propagate = log.propagate, False
    try:
        yield handler.found
    finally:
        log.removeHandler(handler)
        log.propagate = propagates
