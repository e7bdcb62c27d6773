"""The requests under way, the last ones that ended, and samples of the memory. asyncio thread."""

import asyncio
import time
from collections import deque
from typing import Any

from omlx_server.api.activity.answers import MemorySample, MemoryTold, RequestDone
from omlx_server.api.http.exchange import Exchange, work_of
from omlx_server.api.models.served import ServedModels

MOST_DONE = 200
_ADMIN_ROUTES = "/admin/"
_SAMPLE_SECONDS = 2
_MOST_SAMPLES = 10 * 60 // _SAMPLE_SECONDS


class RecentExchanges:
    """An ExchangeLog of POST requests. `ended` counts those that have ended since the start."""

    def __init__(self) -> None:
        self._under_way: dict[int, Exchange] = {}
        self._done: deque[RequestDone] = deque(maxlen=MOST_DONE)
        self.ended = 0

    def begins(self, exchange: Exchange) -> None:
        if exchange.method == "POST":
            self._under_way[id(exchange)] = exchange

    def ends(self, exchange: Exchange) -> None:
        began = self._under_way.pop(id(exchange), None)
        if began is not None and not exchange.route.startswith(_ADMIN_ROUTES):
            self.ended += 1
            self._done.appendleft(_describe_ended(exchange))

    def under_way(self) -> tuple[Exchange, ...]:
        return tuple(self._under_way.values())

    def done(self, ended_before: int = 0) -> list[RequestDone]:
        """Return the last requests, newest first, without the first `ended_before` to end."""
        return list(self._done)[: max(0, self.ended - ended_before)]


def _describe_ended(exchange: Exchange) -> RequestDone:
    fields: dict[str, Any] = work_of(exchange)
    return {
        "id": exchange.id,
        "at": round(exchange.at, 3),
        "route": exchange.route,
        "model": exchange.model or None,
        "status": exchange.status,
        "prompt_tokens": fields.get("prompt_tokens"),
        "cached_tokens": fields.get("cached_tokens"),
        "completion_tokens": fields.get("completion_tokens"),
        "ttft_seconds": fields.get("ttft_seconds"),
        "tokens_per_second": fields.get("tokens_per_second"),
        "finish_reason": fields.get("finish_reason"),
        "error": exchange.problem or None,
        "seconds": round(exchange.ended - exchange.started, 6),
    }


class MemoryHistory:
    """Samples of the memory from the last ten minutes."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._samples: deque[MemorySample] = deque(maxlen=_MOST_SAMPLES)

    async def watch(self) -> None:
        """Take samples until cancelled."""
        while True:
            sample = self.sample_now()
            if sample is not None:
                self._samples.append(sample)
            await asyncio.sleep(_SAMPLE_SECONDS)

    def sample_now(self) -> MemorySample | None:
        """Return a sample, None while the first model loads."""
        report = self._models.vitals.memory
        if report is None:
            return None
        ledger = report.ledger
        cached_in_use = sum(one.cache.in_use for one in self._models.vitals.counted.values())
        shared = min(ledger.live, cached_in_use)  # the two reports may be a second apart
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
            "machine": ledger.machine,
            "free": max(0, ledger.limit - ledger.held - ledger.step - ledger.machine),
            "pool": ledger.pool,
        }

    def history(self) -> MemoryTold:
        samples = list(self._samples)
        latest = self.sample_now()
        if latest is not None:
            samples.append(latest)
        return {"every_seconds": _SAMPLE_SECONDS, "history": samples}
