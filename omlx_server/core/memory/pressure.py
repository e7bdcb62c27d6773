"""The pressure on the machine's memory, and the bytes that the server gives up for it. Pure."""

import math
from dataclasses import dataclass
from enum import IntEnum

from omlx_server.core.memory.ledger import Ledger, hot_floor_bytes

_GB = 10**9
# The machine is short when less than this share of its memory is available, and very short at half.
_SHORT_SHARE = 0.05
_MOST_SHORT = 2 * _GB
# A level is left only when so many times the bytes are available at which it begins.
_HYSTERESIS = 1.5
# Shares of time (percent) in which tasks wait for memory. They count only where memory is scarce:
# else the tasks of some other container have reached its limit.
_MUCH_WAITING = 10.0
_SCARCE = 4
# A look takes at least this share (1/64) of the machine's memory.
_PORTIONS = 64
_STEPS_BACK = 16
_CALM_SECONDS = 10.0
# What was given up shows in readings only after so long.
_SETTLE_SECONDS = 3.0
_STEP_BACK_SECONDS = 4.0
# A pressure that returns within this time doubles the calm before anything is taken back.
_RETURN_SECONDS = 60.0
_LONGEST_CALM_SECONDS = 320.0


class PressureLevel(IntEnum):
    NORMAL = 0
    WARN = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class MachineReading:
    """Bytes of the machine, or of the container; None where the system does not tell them."""

    total: int | None = None
    available: int | None = None
    level: PressureLevel | None = None  # as the system itself judges: macOS
    some: float = 0.0  # percent of the last 10 s in which a task waited for memory
    full: float = 0.0  # the same for all tasks at once


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    level: PressureLevel = PressureLevel.NORMAL
    taken: int = 0  # bytes of the server's limit, which the hot tier gives up
    available: int | None = None

    @property
    def is_critical(self) -> bool:
        return self.level is PressureLevel.CRITICAL

    @property
    def is_none(self) -> bool:
        return not (self.level or self.taken)


NO_PRESSURE = MemoryPressure()


def short_bytes(total: int | None) -> int:
    """Return the available bytes below which the machine is short of memory."""
    return int(min((total or 0) * _SHORT_SHARE, _MOST_SHORT))


def level_of(reading: MachineReading, current: PressureLevel) -> PressureLevel:
    """Return the level of one reading, by higher marks for levels up to the `current` one."""
    if reading.level is not None:
        return reading.level
    if reading.available is None or not reading.total:
        return PressureLevel.NORMAL
    short = short_bytes(reading.total)
    is_scarce = reading.available < _SCARCE * short
    for level, mark, waiting in (
        (PressureLevel.CRITICAL, short / 2, reading.full),
        (PressureLevel.WARN, short, reading.some),
    ):
        factor = _HYSTERESIS if level <= current else 1.0
        waits = is_scarce and waiting * factor >= _MUCH_WAITING
        if waits or reading.available < mark * factor:
            return level
    return PressureLevel.NORMAL


class PressureGauge:
    """Turns readings into the `pressure` in force. `now` is seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.pressure = NO_PRESSURE
        self._last_read = PressureLevel.NORMAL
        self._pressed_at = -math.inf  # last reading at the level in force or above
        self._changed_at = -math.inf  # last change of what is taken
        self._eased_at = -math.inf  # last end of a pressure, or step back after it
        self._calm_seconds = _CALM_SECONDS

    def note(self, reading: MachineReading, ledger: Ledger, now: float) -> MemoryPressure:
        """Return the pressure after a reading. `ledger` is the server's account."""
        read = level_of(reading, self.pressure.level)
        level = self._level_after(read, now)
        taken = before = self.pressure.taken
        if level and read and now - self._changed_at >= _SETTLE_SECONDS:
            taken = max(taken, ledger.limit - ledger.held + _missing_bytes(reading))
        elif taken and not level and self._may_step_back(now):
            taken -= _bytes_back(reading, ledger, taken)
            self._eased_at = now
        taken = min(taken, _most_bytes(ledger))
        if taken != before:
            self._changed_at = now
        self.pressure = MemoryPressure(level, taken, reading.available)
        return self.pressure

    def _level_after(self, read: PressureLevel, now: float) -> PressureLevel:
        level = self.pressure.level
        risen, self._last_read = min(read, self._last_read), read
        if risen > level:
            if not level:
                has_returned = now - self._eased_at < _RETURN_SECONDS
                longer = min(2 * self._calm_seconds, _LONGEST_CALM_SECONDS)
                self._calm_seconds = longer if has_returned else _CALM_SECONDS
            level = risen
        if read and read >= level:
            self._pressed_at = now
        elif level and now - self._pressed_at >= _CALM_SECONDS:
            self._pressed_at = self._eased_at = now
            return PressureLevel(level - 1)
        return level

    def _may_step_back(self, now: float) -> bool:
        is_calm = now - self._pressed_at >= self._calm_seconds
        return is_calm and now - self._changed_at >= _STEP_BACK_SECONDS


def _most_bytes(ledger: Ledger) -> int:
    beside_weights = max(0, ledger.limit - ledger.weights)
    return beside_weights - hot_floor_bytes(beside_weights)


def _missing_bytes(reading: MachineReading) -> int:
    portion = (reading.total or 0) // _PORTIONS
    if reading.available is None:
        return portion
    return max(int(short_bytes(reading.total) * _HYSTERESIS) - reading.available, portion)


def _bytes_back(reading: MachineReading, ledger: Ledger, taken: int) -> int:
    """Return the bytes of a step back: no more than the machine has when the server fills them."""
    step = min(taken, max(_most_bytes(ledger) // _STEPS_BACK, 1))
    if reading.available is None or reading.level is not None:
        return step
    unused = max(0, ledger.limit - taken - ledger.held)
    calm = int(short_bytes(reading.total) * _HYSTERESIS)
    return max(0, min(step, reading.available - calm - unused))
