"""Tells a slow step from a thread that hangs: a long step uses CPU time, a hang does not. Runs on
the event loop's thread; a GPU gets more patience."""

import time
from collections.abc import Callable

from omlx_server.compute.hardware import device

# Silence for so long is no sign of trouble; then its processor time is looked at.
_PATIENCE_SECONDS = 30.0
_GPU_PATIENCE_SECONDS = 120.0
# A longer step counts as stuck, whatever CPU time it uses.
_LONGEST_SECONDS = 600.0
# Least share of one core that a working step uses, even on a busy machine.
_AT_WORK = 0.1


class Pulse:
    """Measures `cpu_seconds` of all other threads every `apart` seconds while there is no beat."""

    patience: float | None = None
    apart = 5.0

    def __init__(self, cpu_seconds: Callable[[], float] | None = None) -> None:
        self._cpu_seconds = cpu_seconds or _cpu_seconds_of_others
        self._works = True
        self._measured_at, self._measured_seconds = -float("inf"), 0.0

    def alive(self, beat: float, now: float) -> bool:
        """Return whether the thread works. Both times are clock.now()."""
        silent_seconds = now - beat
        # After a beat this is shorter than what is measured: an error on the side of "works".
        since_measured = now - max(beat, self._measured_at)
        if silent_seconds < self._patience_now:
            self._note(now, works=True)
        elif since_measured >= self.apart:
            used_seconds = self._cpu_seconds() - self._measured_seconds
            self._note(now, works=used_seconds >= _AT_WORK * since_measured)
        return self._works and silent_seconds < _LONGEST_SECONDS

    @property
    def _patience_now(self) -> float:
        if self.patience is not None:
            return self.patience
        return _PATIENCE_SECONDS if device.is_cpu() else _GPU_PATIENCE_SECONDS

    def _note(self, now: float, *, works: bool) -> None:
        self._works, self._measured_at, self._measured_seconds = works, now, self._cpu_seconds()


def _cpu_seconds_of_others() -> float:
    return time.process_time() - time.thread_time()
