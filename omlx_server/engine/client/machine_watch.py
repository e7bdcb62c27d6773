"""Watches the machine's memory, and has the account follow. On the event loop; reads and the heap
are worker threads' work, the account the mlx thread's."""

import asyncio
import logging
from collections.abc import Callable

from omlx_server import clock
from omlx_server.compute.hardware import heap
from omlx_server.compute.hardware.machine import read_machine
from omlx_server.core.crash import Crash, guarded, guarded_async
from omlx_server.core.interval import Interval
from omlx_server.core.memory.ledger import in_words
from omlx_server.core.memory.pressure import (
    NO_PRESSURE,
    MachineReading,
    MemoryPressure,
    PressureGauge,
)
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.memory.account import MemoryAccount

_log = logging.getLogger(__name__)
SECONDS = 1.0
# Under pressure freed memory goes back to the system this often.
_RETURN_SECONDS = 5.0


class MachineWatch:
    """Tells `account` of pressure on the machine's memory while `is_on()`."""

    def __init__(
        self,
        engine: AsyncEngine,
        account: MemoryAccount,
        is_on: Callable[[], bool],
        read: Callable[[], MachineReading] = read_machine,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._engine = engine
        self._account = account
        self._is_on = is_on
        self._read = read
        self._clock = clock
        self._gauge = PressureGauge()
        self._return_again = Interval(_RETURN_SECONDS)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(SECONDS)
            crash = await guarded_async(self.look())
            if isinstance(crash, Crash):
                _log.error("the machine's memory could not be watched: %s", crash.reason)

    async def look(self) -> None:
        now, memory, before = self._clock(), self._engine.memory, self._account.pressure
        if not self._is_on() or memory is None:
            self._gauge = PressureGauge()
            pressure = NO_PRESSURE
        else:
            reading = await asyncio.to_thread(guarded, self._read)
            if isinstance(reading, Crash):  # unknown is no pressure: else it would stay for ever
                reading = MachineReading()
            pressure = self._gauge.note(reading, memory.ledger, now)
        if before.is_none and pressure.is_none:
            return
        await self._engine.call(lambda: self._account.change_pressure(pressure))
        if pressure.level and self._return_again.has_passed(now):
            self._return_again.begin(now)
            await asyncio.to_thread(heap.return_freed)
        if pressure.level is not before.level:
            _tell(pressure)


def _tell(pressure: MemoryPressure) -> None:
    if not pressure.level:
        _log.info("the machine has memory again")
        return
    does = "; new requests wait" if pressure.is_critical else ""
    _log.warning(
        "the machine is short of memory (%s, %s available): the server uses %s less than its "
        "limit%s",
        pressure.level.name.lower(),
        "unknown" if pressure.available is None else in_words(pressure.available),
        in_words(pressure.taken),
        does,
    )
