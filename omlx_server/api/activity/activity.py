"""Reports on requests, memory, models and caches. Runs on the asyncio thread."""

from itertools import takewhile

from omlx_server import clock
from omlx_server.api.activity import answers
from omlx_server.api.activity.history import MemoryHistory, RecentExchanges
from omlx_server.api.activity.live import Broadcast
from omlx_server.api.activity.requests_at_work import StandingsPoll, describe_requests
from omlx_server.api.http.exchange import Exchange
from omlx_server.api.http.sse import named_events
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import Served
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.request import Miss
from omlx_server.engine.pool.entry import Phase, PoolEntry

# The first event after a pause without listeners tells of so many requests that ended before it.
_MOST_ENDED_BEFORE = 20
_MOST_MODELS = 200
_WAITING_PLACES = ("queued", "restoring", "paused")


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
        at_work = await self._at_work()
        return {"at_work": list(at_work.values()), "done": self.recent.done()}

    async def progress(self, id: str, client: bytes) -> answers.Progress:
        at_work = await self._at_work()
        sent = (one for one in at_work if one.id == id and one.client == client)
        asked = next(sent, None)
        if asked is None:
            return {"request": None, "before": 0}
        earlier = takewhile(lambda one: one is not asked, at_work)
        same_model = (at_work[one] for one in earlier if one.model == asked.model)
        before = sum(one["place"] in _WAITING_PLACES for one in same_model)
        return {"request": at_work[asked], "before": before}

    async def _at_work(self) -> dict[Exchange, answers.RequestAtWork]:
        standings = await self._standings_poll.latest(self.recent.under_way())
        # Read anew, as requests may have ended during the await.
        under_way = self.recent.under_way()
        loaded = [label_of(model.names[0]) for model in self._models.pool.loaded()]
        paces, loads = self._standings_poll.paces, self._loads_by_model()
        return describe_requests(under_way, standings, paces, loaded, loads, clock.now())

    def _loads_by_model(self) -> dict[str, answers.LoadProgress]:
        loads = {}
        for listing in self._models.known():
            load = progress_of(self._models.pool.entry(listing.load_request.key))
            if load is not None:
                loads[label_of(listing.names[0])] = load
        return loads

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
            "requests": {"at_work": list(at_work.values())},
            "done": self.recent.done(ended_before),
            "models": [_describe_model(self._models, listing) for listing in listings],
            "cache": [
                {"model": name, "counters": cache_counters(counts.cache)}
                for name, counts in counted.items()
            ],
            "cold": _describe_writes(self._models.vitals.cold),
        }
        return named_events(state)


def _describe_writes(cold: ColdReport | None) -> answers.ColdWrites | None:
    if cold is None:
        return None
    return {
        "today_bytes": cold.written_today,
        "since_start_bytes": cold.written_bytes,
        "daily_bytes": cold.daily_bytes,
    }


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


def progress_of(entry: PoolEntry[Served] | None) -> answers.LoadProgress | None:
    """Return how far the load of a model is; None while there is none."""
    if entry is None or entry.phase is not Phase.LOADING:
        return None
    return {"bytes": entry.read_bytes, "total": entry.wanted.nbytes}


def _describe_model(models: ServedModels, listing: ModelListing) -> answers.LiveModel:
    entry = models.pool.entry(listing.load_request.key)
    return {
        "name": listing.names[0],
        "kind": listing.role.kind,
        "state": entry.phase.value if entry else Phase.ABSENT.value,
        "load": progress_of(entry),
        "pinned": entry.is_pinned if entry else listing.load_request.pinned,
        "in_use": entry.users if entry else 0,
    }
