"""Samples of the memory's account over the last minutes. Runs on the asyncio thread."""

import asyncio
import time
from collections import deque

from omlx_server.api.activity.answers import MemorySample, MemoryTold
from omlx_server.api.models.served import ServedModels

EVERY_SECONDS = 2
_MOST = 10 * 60 // EVERY_SECONDS


class MemoryHistory:
    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._samples: deque[MemorySample] = deque(maxlen=_MOST)

    async def watch(self) -> None:
        """Take samples until cancelled."""
        while True:
            sample = self.now()
            if sample is not None:
                self._samples.append(sample)
            await asyncio.sleep(EVERY_SECONDS)

    def now(self) -> MemorySample | None:
        """Return the account, None while the first model loads."""
        report = self._models.vitals.memory
        if report is None:
            return None
        ledger = report.ledger
        in_use = sum(one.cache.in_use for one in self._models.vitals.counted.values())
        shared = min(ledger.live, in_use)  # the two reports may be a second apart
        return {
            "at": round(time.time(), 3),
            "limit": ledger.limit,
            "weights": ledger.weights,
            "live": ledger.live - shared,
            "shared": shared,
            "blocks": ledger.blocks,
            "checkpoints": ledger.checkpoints,
            "pending": ledger.pending,
            "step": ledger.step,
            "free": max(0, ledger.limit - ledger.held - ledger.step),
            "pool": ledger.pool,
        }

    def history(self) -> MemoryTold:
        now = self.now()
        samples = [*self._samples, *([now] if now is not None else [])]
        return {"every_seconds": EVERY_SECONDS, "history": samples}
