"""Health of the mlx thread, checked on the event loop's thread. A long step uses CPU time, a
hang does not; a GPU gets more patience."""

import time
from collections.abc import Callable

from omlx_server.compute.hardware import device

_PATIENCE_SECONDS = 30.0
_GPU_PATIENCE_SECONDS = 120.0
# A longer step counts as stuck, whatever CPU time it uses.
_LONGEST_SECONDS = 600.0
# Least share of one core that a working step uses, even on a busy machine.
_AT_WORK = 0.1


class Pulse:
    """`burnt` returns the CPU seconds of all other threads; `patience` None is 30 s on a CPU,
    120 s on a GPU."""

    patience: float | None = None
    apart = 5.0

    def __init__(self, burnt: Callable[[], float] | None = None) -> None:
        self._burnt = burnt or _burnt
        self._works = True
        self._at, self._before = -float("inf"), 0.0

    def alive(self, beat: float, now: float) -> bool:
        """Return whether the thread works. Both times are time.monotonic()."""
        silent = now - beat
        if silent < self._patience_now:
            self._look(now, works=True)
        elif now - max(beat, self._at) >= self.apart:
            burnt = self._burnt() - self._before
            self._look(now, works=burnt >= _AT_WORK * (now - max(beat, self._at)))
        return self._works and silent < _LONGEST_SECONDS

    @property
    def _patience_now(self) -> float:
        if self.patience is not None:
            return self.patience
        return _PATIENCE_SECONDS if device.is_cpu() else _GPU_PATIENCE_SECONDS

    def _look(self, now: float, *, works: bool) -> None:
        self._works, self._at, self._before = works, now, self._burnt()


def _burnt() -> float:
    return time.process_time() - time.thread_time()
