"""Reports on requests, memory, models and caches. Runs on the asyncio thread."""

import time

from omlx_server.api.activity.answers import (
    CacheCounters,
    LiveModel,
    LiveState,
    RequestAtWork,
    Requests,
)
from omlx_server.api.activity.history import MemoryHistory, RecentExchanges
from omlx_server.api.activity.lanes import StandingsAsked, lanes
from omlx_server.api.activity.live import Broadcast
from omlx_server.api.http.sse import named_events
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.request import Miss
from omlx_server.engine.pool.entry import Phase

# The first listener after a pause also gets this many requests that ended before.
_AGAIN = 20
_MOST_MODELS = 200


class Activity:
    """Reports on requests and `models`. `recent` is the log of exchanges; `live` sends listeners
    the state: a lane for each request at work, by its sequences' standings in the scheduler."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self.recent = RecentExchanges()
        self.memory = MemoryHistory(models)
        self._standings = StandingsAsked(models)
        self._ended_before = 0
        self.live = Broadcast(self._event)

    async def requests(self) -> Requests:
        return {"at_work": await self._at_work(), "done": self.recent.done()}

    async def _at_work(self) -> list[RequestAtWork]:
        standings = await self._standings.of(self.recent.under_way())
        loaded = [label_of(model.names[0]) for model in self._models.pool.loaded()]
        # Again, since requests may have ended during the await.
        under_way, paces = self.recent.under_way(), self._standings.paces
        return lanes(under_way, standings, paces, loaded, time.monotonic())

    async def _event(self, first: bool) -> bytes:
        at_work = await self._at_work()
        since = max(0, self.recent.ended - _AGAIN) if first else self._ended_before
        self._ended_before = self.recent.ended
        counted = self._models.vitals.counted
        state: LiveState = {
            "type": "state",
            "memory": self.memory.now(),
            "requests": {"at_work": at_work},
            "done": self.recent.done(since),
            "models": [_model(self._models, one) for one in self._models.known()[:_MOST_MODELS]],
            "cache": [
                {"model": name, "counters": counters(one.cache)} for name, one in counted.items()
            ],
        }
        return named_events(state)


def counters(cache: CacheReport) -> CacheCounters:
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


def _model(models: ServedModels, known: ModelListing) -> LiveModel:
    entry = models.pool.entry(known.wanted.key)
    return {
        "name": known.names[0],
        "kind": known.role.kind,
        "state": entry.phase.value if entry else Phase.ABSENT.value,
        "pinned": entry.is_pinned if entry else known.wanted.pinned,
        "in_use": entry.users if entry else 0,
    }
