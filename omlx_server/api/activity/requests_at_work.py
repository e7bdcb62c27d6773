"""Where each request at work is, from its exchange and from the schedulers, which are asked at most
once a second. Runs on the asyncio thread."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from omlx_server import clock
from omlx_server.api.activity.answers import LoadProgress, Place, RequestAtWork
from omlx_server.api.http.exchange import Exchange, Phases, exchange_of_engine_id, work_of
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.scheduler.standings import Standing, WaitReason
from omlx_server.errors import OmlxError

MOST_REQUESTS = 500
_ASK_SECONDS = 1.0
# The mlx thread answers between two steps, and a step with a large chunk may take seconds.
_PATIENCE_SECONDS = 0.5
_DECODING_PLACES = ("running", "finishing")
_PLACES_FURTHEST_FIRST: Final[tuple[Place, ...]] = (
    "decoding",
    "prefilling",
    "restoring",
    "paused",
    "queued",
)
"""A request with several sequences has the first of these places that one of them has."""

StandingsByExchange = Mapping[Exchange, Sequence[Standing]]


def describe_requests(
    under_way: Iterable[Exchange],
    standings: StandingsByExchange,
    paces: Mapping[Exchange, float],
    loaded: Collection[str],
    loads: Mapping[str, LoadProgress],
    now: float,
) -> dict[Exchange, RequestAtWork]:
    """Return the states of requests that are in the engine or wait for their model to load.
    `paces` are prompt tokens a second; `loaded` names models, `loads` those under way; `now` is
    clock.now()."""
    at_work = {}
    for exchange in under_way:
        is_in_engine = bool(exchange.phases)
        waits_for_model = bool(exchange.model) and exchange.model not in loaded
        if is_in_engine or waits_for_model:
            pace, its_standings = paces.get(exchange), standings.get(exchange, ())
            load = None if is_in_engine else loads.get(exchange.model)
            at_work[exchange] = _describe_request(exchange, its_standings, pace, load, now)
        if len(at_work) == MOST_REQUESTS:
            break
    return at_work


def _describe_request(
    exchange: Exchange,
    standings: Sequence[Standing],
    pace: float | None,
    load: LoadProgress | None,
    now: float,
) -> RequestAtWork:
    phases = exchange.phases
    places = {_place_of(standing) for standing in standings}
    if not places:  # the scheduler was not asked
        has_first_token = any(one.first is not None for one in phases)
        places = {"decoding" if has_first_token else "queued"}
    place = next(place for place in _PLACES_FURTHEST_FIRST if place in places)
    rate = pace if place == "prefilling" else work_of(exchange).get("tokens_per_second")
    return {
        "id": exchange.id,
        "model": exchange.model,
        "place": place,
        "choices": max(1, sum(standing.choices for standing in standings)),
        "prompt_tokens": sum(one.prompt_tokens for one in phases),
        "cached_tokens": _count_cached_tokens(phases, standings),
        "computed_tokens": _count_computed_tokens(phases, standings),
        "output_tokens": sum(one.generated for one in phases),
        "tokens_per_second": None if rate is None else round(float(rate), 1),
        "waits_for": _waits_for(place, phases, standings),
        "load": load,
        "seconds": round(now - exchange.started, 3),
    }


def count_prefilled_tokens(standings: Sequence[Standing]) -> int:
    """Return the tokens in prefill that were computed, not restored."""
    active = [standing for standing in standings if standing.place == "active"]
    return sum(max(0, standing.computed - standing.restored) for standing in active)


def _place_of(standing: Standing) -> Place:
    if standing.place in _DECODING_PLACES:
        return "decoding"
    if standing.place == "active":
        return "prefilling"
    if standing.place == "preempted" or standing.output:
        return "paused"
    return "restoring" if standing.waits_for is WaitReason.COLD else "queued"


def _count_cached_tokens(phases: Sequence[Phases], standings: Sequence[Standing]) -> int:
    """Return the cached prompt tokens, which only the scheduler knows until the first token."""
    restored = _sum_greatest_per_request((one.request, one.restored) for one in standings)
    return max(restored, sum(one.cached_tokens for one in phases))


def _count_computed_tokens(phases: Sequence[Phases], standings: Sequence[Standing]) -> int:
    if standings:
        counts = ((one.request, min(one.computed, one.prompt)) for one in standings)
        return _sum_greatest_per_request(counts)
    return sum(one.prompt_tokens for one in phases if one.first is not None)


def _sum_greatest_per_request(counts: Iterable[tuple[str, int]]) -> int:
    """Sum each request's greatest count, as its choices share a prompt."""
    greatest: dict[str, int] = {}
    for request, count in counts:
        greatest[request] = max(count, greatest.get(request, 0))
    return sum(greatest.values())


def _waits_for(place: Place, phases: Sequence[Phases], standings: Sequence[Standing]) -> str | None:
    if not phases:
        return "its model"
    if place in ("decoding", "prefilling"):
        return None
    reasons = (one.waits_for for one in standings if one.waits_for is not WaitReason.STEP)
    return next((reason.value for reason in reasons), None)


class StandingsPoll:
    """Asks the schedulers, and keeps their last answer. `paces` are prompt tokens a second."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._last_standings: StandingsByExchange = {}
        self.paces: Mapping[Exchange, float] = {}
        self._asked_at = self._answered_at = -_ASK_SECONDS
        self._asking: asyncio.Task[None] | None = None

    async def latest(self, under_way: Iterable[Exchange]) -> StandingsByExchange:
        """Return the last answer, at most a second old, or older during a long step."""
        now = clock.now()
        models_in_use = {exchange.model for exchange in under_way if exchange.phases}
        models = [m for m in self._models.loaded() if label_of(m.names[0]) in models_in_use]
        if self._asking is None and now - self._asked_at >= _ASK_SECONDS:
            self._asked_at = now
            if not models:
                self._last_standings, self.paces = {}, {}
                return self._last_standings
            self._asking = asyncio.create_task(self._ask_schedulers(models))
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=_PATIENCE_SECONDS)
        return self._last_standings

    async def _ask_schedulers(self, models: Sequence[ServedModel]) -> None:
        standings: dict[Exchange, list[Standing]] = {}
        try:
            for model in models:
                with suppress(OmlxError):  # it was unloaded meanwhile
                    for standing in await model.engine.standings():
                        exchange = exchange_of_engine_id(standing.request)
                        if exchange is not None:
                            standings.setdefault(exchange, []).append(standing)
            self._update(standings, clock.now())
        finally:
            self._asking = None

    def _update(self, standings_now: StandingsByExchange, now: float) -> None:
        seconds = now - self._answered_at
        paces = {}
        for exchange, standings in standings_now.items():
            tokens_before = count_prefilled_tokens(self._last_standings.get(exchange, ()))
            tokens = count_prefilled_tokens(standings) - tokens_before
            if tokens > 0:
                paces[exchange] = tokens / seconds
        self.paces = paces
        self._last_standings, self._answered_at = standings_now, now
