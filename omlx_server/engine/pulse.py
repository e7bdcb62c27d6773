"""Whether the mlx thread is at work, or stuck. Lives on the event loop's thread.

A long step, such as a large chunk of a prompt on a slow machine, has no heartbeat, and neither has
a thread that hangs. But who computes, or compiles, burns time of the CPU; who waits for what never
comes burns none. A GPU computes without the CPU, so there a step without a sign of life has longer.
"""

import time
from collections.abc import Callable

from omlx_server.compute.hardware import device

_PATIENCE_SECONDS = 30.0
_GPU_PATIENCE_SECONDS = 120.0
# Whatever it burns: a step that takes longer is of no use to anybody.
_LONGEST_SECONDS = 600.0
_LOOK_SECONDS = 5.0
# Of one core; a machine with much to do gives a step no more than a part of one.
_AT_WORK = 0.1


class Pulse:
    """`burnt` tells the seconds of CPU time of all threads but the event loop's."""

    def __init__(
        self,
        patience: float | None = None,
        longest: float = _LONGEST_SECONDS,
        apart: float = _LOOK_SECONDS,
        burnt: Callable[[], float] | None = None,
    ) -> None:
        """Looks closer together than `apart` seconds are one. Without a `patience` it is that of
        the device."""
        self._patience = patience
        self._longest = longest
        self._apart = apart
        self._burnt = burnt or _burnt
        self._works = True
        self._at, self._before = -float("inf"), 0.0

    def alive(self, beat: float, now: float) -> bool:
        """`beat` is the last heartbeat, by time.monotonic()."""
        silent = now - beat
        if silent < self._patience_now:
            self._look(now, works=True)
        elif now - max(beat, self._at) >= self._apart:
            burnt = self._burnt() - self._before
            self._look(now, works=burnt >= _AT_WORK * (now - max(beat, self._at)))
        return self._works and silent < self._longest

    @property
    def _patience_now(self) -> float:
        if self._patience is not None:
            return self._patience
        return _PATIENCE_SECONDS if device.is_cpu() else _GPU_PATIENCE_SECONDS

    def _look(self, now: float, *, works: bool) -> None:
        self._works, self._at, self._before = works, now, self._burnt()


def _burnt() -> float:
    return time.process_time() - time.thread_time()
