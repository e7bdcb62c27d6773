"""The requests for work under way, the last ones, and samples of the memory. asyncio thread."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from omlx_server.api.activity.answers import MemorySample, MemoryTold, RequestDone
from omlx_server.api.http.exchange import Exchange, work_of
from omlx_server.api.models.served import ServedModels

MOST_DONE = 200
_ORDERS = "/admin/"
_SAMPLE_SECONDS = 2
_MOST_SAMPLES = 10 * 60 // _SAMPLE_SECONDS


class RecentExchanges:
    """An ExchangeLog. `ended` counts requests since the start."""

    def __init__(self) -> None:
        self._under_way: dict[int, Exchange] = {}
        self._done: deque[RequestDone] = deque(maxlen=MOST_DONE)
        self.ended = 0

    def begins(self, exchange: Exchange) -> None:
        if exchange.method == "POST":
            self._under_way[id(exchange)] = exchange

    def ends(self, exchange: Exchange) -> None:
        began = self._under_way.pop(id(exchange), None)
        if began is not None and not exchange.route.startswith(_ORDERS):
            self.ended += 1
            self._done.appendleft(_shape(exchange))

    def under_way(self) -> Iterator[Exchange]:
        return iter(tuple(self._under_way.values()))

    def done(self, since: int = 0) -> list[RequestDone]:
        """Return the last requests after the first `since`, the newest first."""
        return list(self._done)[: max(0, self.ended - since)]


def _shape(exchange: Exchange) -> RequestDone:
    fields: dict[str, Any] = work_of(exchange)
    return {
        "id": exchange.id,
        "at": round(time.time() - (time.monotonic() - exchange.started), 3),
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
    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._samples: deque[MemorySample] = deque(maxlen=_MOST_SAMPLES)

    async def watch(self) -> None:
        """Take samples until cancelled."""
        while True:
            sample = self.now()
            if sample is not None:
                self._samples.append(sample)
            await asyncio.sleep(_SAMPLE_SECONDS)

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
        return {"every_seconds": _SAMPLE_SECONDS, "history": samples}
