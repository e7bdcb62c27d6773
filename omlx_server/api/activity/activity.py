"""Reports on requests, memory, models and caches. Runs on the asyncio thread."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from omlx_server.api.activity import answers
from omlx_server.api.activity.answers import MemorySample, MemoryTold, RequestDone
from omlx_server.api.activity.requests_at_work import StandingsPoll, describe_requests
from omlx_server.api.http.exchange import Exchange, work_of
from omlx_server.api.http.sse import named_events
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.request import Miss
from omlx_server.engine.pool.entry import Phase
from omlx_server.errors import QueueFull, Unavailable

MOST_DONE = 200
_ADMIN_ROUTES = "/admin/"
_SAMPLE_SECONDS = 2
_MOST_SAMPLES = 10 * 60 // _SAMPLE_SECONDS
EVERY_SECONDS = 1.0
MOST_LISTENERS = 64
# A listener that is further behind loses the oldest events.
_MAX_EVENTS_BEHIND = 16
# The first event after a pause without listeners tells of so many requests that ended before it.
_MOST_ENDED_BEFORE = 20
_MOST_MODELS = 200


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
            "free": max(0, ledger.limit - ledger.held - ledger.step),
            "pool": ledger.pool,
        }

    def history(self) -> MemoryTold:
        samples = list(self._samples)
        latest = self.sample_now()
        if latest is not None:
            samples.append(latest)
        return {"every_seconds": _SAMPLE_SECONDS, "history": samples}


class Broadcast:
    """Sends events to listeners, and makes them only while there are some. `make_event` is told
    whether it makes the first one after a pause without listeners."""

    def __init__(self, make_event: Callable[[bool], Awaitable[bytes]]) -> None:
        self._make_event = make_event
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._latest: bytes | None = None
        self._closed = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def events(self, max_events: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the latest event and the next ones, at most `max_events`. Raises QueueFull for too
        many listeners, Unavailable while shutting down."""
        if self._closed:
            raise Unavailable("the server is shutting down")
        if self.listeners >= MOST_LISTENERS:
            raise QueueFull(f"{MOST_LISTENERS} clients listen already", retry_after=5)
        queue = asyncio.Queue[bytes | None]()
        self._listeners.add(queue)
        if self._latest is not None:
            queue.put_nowait(self._latest)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_each_second())
        try:
            while max_events is None or max_events > 0:
                event = await queue.get()
                if event is None:
                    return
                max_events = None if max_events is None else max_events - 1
                yield event
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._sender is not None:
                self._sender.cancel()
                self._sender = self._latest = None

    def close(self) -> None:
        self._closed = True
        self._send(None)

    async def _send_each_second(self) -> None:
        is_first = True
        try:
            while True:
                self._latest = await self._make_event(is_first)
                self._send(self._latest)
                is_first = False
                await asyncio.sleep(EVERY_SECONDS)
        finally:
            if self._sender is asyncio.current_task():  # it failed: let nobody wait for ever
                self._sender = self._latest = None
                self._send(None)

    def _send(self, event: bytes | None) -> None:
        """Queue an event for each listener; None ends its stream."""
        for queue in self._listeners:
            if queue.qsize() >= _MAX_EVENTS_BEHIND:
                queue.get_nowait()
            queue.put_nowait(event)


class Activity:
    """Reports to listeners (`live`) on the requests that `recent` logs, memory, models, caches."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self.recent = RecentExchanges()
        self.memory = MemoryHistory(models)
        self._standings_poll = StandingsPoll(models)
        self._ended_at_last_event = 0
        self.live = Broadcast(self._make_state_event)

    async def requests(self) -> answers.Requests:
        return {"at_work": await self._at_work(), "done": self.recent.done()}

    async def _at_work(self) -> list[answers.RequestAtWork]:
        standings = await self._standings_poll.latest(self.recent.under_way())
        # Read anew, as requests may have ended during the await.
        under_way = self.recent.under_way()
        loaded = [label_of(model.names[0]) for model in self._models.pool.loaded()]
        paces = self._standings_poll.paces
        return describe_requests(under_way, standings, paces, loaded, time.monotonic())

    async def _make_state_event(self, is_first: bool) -> bytes:
        """Return the state and the requests that ended since the last event."""
        at_work = await self._at_work()
        ended_before = self._ended_at_last_event
        if is_first:
            ended_before = max(0, self.recent.ended - _MOST_ENDED_BEFORE)
        self._ended_at_last_event = self.recent.ended
        listings = self._models.known()[:_MOST_MODELS]
        counted = self._models.vitals.counted
        state: answers.LiveState = {
            "type": "state",
            "memory": self.memory.sample_now(),
            "requests": {"at_work": at_work},
            "done": self.recent.done(ended_before),
            "models": [_describe_model(self._models, listing) for listing in listings],
            "cache": [
                {"model": name, "counters": cache_counters(counts.cache)}
                for name, counts in counted.items()
            ],
        }
        return named_events(state)


def cache_counters(cache: CacheReport) -> answers.CacheCounters:
    # Hits are counted among the misses, under the reason "none".
    misses = {why: count for why, count in cache.misses.items() if why != Miss.NONE.value}
    return {
        "hits": cache.misses.get(Miss.NONE.value, 0),
        "misses": misses,
        "looked_up_tokens": cache.queried_tokens,
        "found_tokens": cache.hit_tokens,
        "cold_tokens": cache.cold_hit_tokens,
        "evicted_blocks": cache.evicted_blocks,
        "evicted_checkpoints": cache.evicted_checkpoints,
        "blocks": cache.blocks,
        "checkpoints": cache.checkpoints,
        "bytes": cache.nbytes,
        "in_use_bytes": cache.in_use,
        "budget_bytes": cache.budget,
    }


def _describe_model(models: ServedModels, listing: ModelListing) -> answers.LiveModel:
    entry = models.pool.entry(listing.load_request.key)
    return {
        "name": listing.names[0],
        "kind": listing.role.kind,
        "state": entry.phase.value if entry else Phase.ABSENT.value,
        "pinned": entry.is_pinned if entry else listing.load_request.pinned,
        "in_use": entry.users if entry else 0,
    }
