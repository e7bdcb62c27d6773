"""Reacts to failed steps and jobs. Lives on the mlx thread."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from omlx_server.compute.hardware import device
from omlx_server.core.crash import Crashes
from omlx_server.core.device_errors import DeviceFault, Reaction, RecentFaults, fault_of
from omlx_server.core.request import TokenEvent
from omlx_server.core.step import SequenceId
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import Unavailable, one_line

_log = logging.getLogger(__name__)

# A sequence ends with an error once so many steps with it have failed without a token in between.
_MOST_FAILED_STEPS = 8


class RecoverableLoop(Protocol):
    instance: ModelInstance

    def send(self, events: Sequence[TokenEvent]) -> None: ...
    def beat(self) -> None: ...
    def start_over_with_sequences(self) -> None: ...
    def fail_for_good(self, problem: str) -> None: ...


class StepRecovery:
    """Decides what to do after a failed step, by what failed."""

    def __init__(self, loop: RecoverableLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._unexplained = Crashes()
        self._failed_steps = dict[tuple[SequenceId, int], int]()  # by length of the output

    def recover(self, error: Exception, *, drafted: bool = False) -> None:
        """Let sequences go on as far as they can. Raises `error` if there is no way."""
        fault = fault_of(error)
        if fault is not None:
            self._recover_from(fault, error, drafted=drafted)
        elif drafted:
            _log.error(
                "a step with drafts failed: %s; going on without", one_line(error), exc_info=error
            )
            self._loop.instance.restart_without_drafts()
        else:
            self._find_culprits(error)

    def _recover_from(self, fault: DeviceFault, error: Exception, *, drafted: bool) -> None:
        instance = self._loop.instance
        reaction = instance.faults.note(fault, self._clock())
        _log.error("the device failed (%s): %s; %s", fault, one_line(error), reaction.value)
        self._end_often_failed()
        match reaction:
            case Reaction.GIVE_BACK if drafted:
                instance.restart_without_drafts()
            case Reaction.GIVE_BACK:
                instance.give_back()
            case Reaction.END_NEWEST:
                self._loop.send(instance.recover_memory())
            case Reaction.END_ALL:
                for sequence in instance.restart():
                    self._fail(sequence.id, str(error))
            case Reaction.SHORTEN:
                instance.halve_dispatches()
                instance.restart()
            case Reaction.RETRY:
                instance.restart()
            case Reaction.START_OVER:
                self._loop.start_over_with_sequences()
            case Reaction.LEAVE:
                instance.restart()
                self._loop.fail_for_good(instance.faults.lost)

    def _end_often_failed(self) -> None:
        queues = self._loop.instance.scheduler.queues
        prompts = [sequence for prefill in queues.active for sequence in prefill.sequences]
        marks = [(sequence.id, len(sequence.output)) for sequence in (*queues.rows(), *prompts)]
        self._failed_steps = {mark: self._failed_steps.get(mark, 0) + 1 for mark in marks}
        for (id, _), failed in self._failed_steps.items():
            if failed >= _MOST_FAILED_STEPS:
                self._fail(id, f"the device failed {failed} times while it ran")

    def _find_culprits(self, error: Exception) -> None:
        """End the sequences that fail alone twice while others work. Without any, all go on; the
        third time within a minute `error` is raised."""
        _log.error("a step failed; looking for its cause", exc_info=error)
        culprits = list[tuple[SequenceId, str]]()
        suspects, runner = self._loop.instance.restart(), self._loop.instance.runner
        for sequence in suspects:
            self._loop.beat()
            join, images = sequence.join(), sequence.request.images
            if runner.failure_of(join, images) and (again := runner.failure_of(join, images)):
                culprits.append((sequence.id, again.summary))
        if len(culprits) == len(suspects) and runner.is_broken():
            raise error  # nothing works
        for id, summary in culprits:
            self._fail(id, f"{summary} while generating")
        if not culprits and self._unexplained.are_too_many(self._clock()):
            raise error

    def _fail(self, id: SequenceId, why: str) -> None:
        self._loop.send(self._loop.instance.scheduler.fail_sequence(id, why))


def note_job_error(
    faults: RecentFaults,
    clock: Callable[[], float],
    shorten: Callable[[], None],
    error: Exception,
) -> Exception:
    """Note the error of a job or a load: other work goes on. Return what a job's client gets.
    `shorten` halves what models submit at once."""
    fault = fault_of(error)
    if fault is None:
        return error
    reaction = faults.note(fault, clock())
    if reaction not in (Reaction.LEAVE, Reaction.SHORTEN):
        reaction = Reaction.GIVE_BACK
    _log.error("the device failed (%s): %s; %s", fault, one_line(error), reaction.value)
    device.give_back()
    if reaction is Reaction.SHORTEN:
        shorten()
    return Unavailable(f"the device failed ({fault}); try again")
