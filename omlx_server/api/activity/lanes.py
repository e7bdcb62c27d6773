"""The state of each request at work, from its exchange and the scheduler, which is asked at most
once a second. Runs on the asyncio thread."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from omlx_server.api.activity.answers import Place, RequestAtWork
from omlx_server.api.http.exchange import Exchange, Phases, exchange_of_engine_id, work_of
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.scheduler.standings import Standing, WaitReason
from omlx_server.errors import OmlxError

MOST_LANES = 500
_ASK_SECONDS = 1.0
# The mlx thread answers between two steps, and a step with a large chunk may take seconds.
_PATIENCE_SECONDS = 0.5
ByExchange = Mapping[Exchange, Sequence[Standing]]
_ROWS = ("running", "finishing")
_FURTHEST: Final[tuple[Place, ...]] = (
    "decoding",
    "prefilling",
    "restoring",
    "paused",
    "queued",
)
"""A request with several sequences has the first of these places that one of them has."""


def lanes(
    under_way: Iterable[Exchange],
    standings: ByExchange,
    paces: Mapping[Exchange, float],
    loaded: Iterable[str],
    now: float,
) -> list[RequestAtWork]:
    """Return the states of requests in the engine or waiting for a model to load. `paces` are
    prompt tokens a second; `now` is time.monotonic()."""
    here = frozenset(loaded)
    at_work = []
    for exchange in under_way:
        if exchange.phases or (exchange.model and exchange.model not in here):
            pace = paces.get(exchange)
            at_work.append(_lane(exchange, standings.get(exchange, ()), pace, now))
        if len(at_work) == MOST_LANES:
            break
    return at_work


def _lane(
    exchange: Exchange, standings: Sequence[Standing], pace: float | None, now: float
) -> RequestAtWork:
    phases, speed = exchange.phases, work_of(exchange)
    places = {_place(standing) for standing in standings}
    if not places:  # the scheduler was not asked
        places = {"decoding" if any(one.first is not None for one in phases) else "queued"}
    place = next(place for place in _FURTHEST if place in places)
    rate = pace if place == "prefilling" else speed.get("tokens_per_second")
    return {
        "id": exchange.id,
        "model": exchange.model,
        "place": place,
        "choices": max(1, sum(standing.choices for standing in standings)),
        "prompt_tokens": sum(one.prompt_tokens for one in phases),
        "cached_tokens": _cached(phases, standings),
        "computed_tokens": _computed(phases, standings),
        "output_tokens": sum(one.generated for one in phases),
        "tokens_per_second": None if rate is None else round(float(rate), 1),
        "waits_for": _awaited(place, phases, standings),
        "seconds": round(now - exchange.started, 3),
    }


def prefilled(standings: Sequence[Standing]) -> int:
    """Return the tokens in prefill that were computed, not restored."""
    active = [standing for standing in standings if standing.place == "active"]
    return sum(max(0, standing.computed - standing.restored) for standing in active)


def _place(standing: Standing) -> Place:
    if standing.place in _ROWS:
        return "decoding"
    if standing.place == "active":
        return "prefilling"
    if standing.place == "preempted" or standing.output:
        return "paused"
    return "restoring" if standing.waits_for is WaitReason.COLD else "queued"


def _cached(phases: Sequence[Phases], standings: Sequence[Standing]) -> int:
    """Return the cached prompt tokens, which only the scheduler knows until the first token."""
    restored = _per_request((one.request, one.restored) for one in standings)
    return max(restored, sum(one.cached_tokens for one in phases))


def _computed(phases: Sequence[Phases], standings: Sequence[Standing]) -> int:
    if standings:
        return _per_request((one.request, min(one.computed, one.prompt)) for one in standings)
    return sum(one.prompt_tokens for one in phases if one.first is not None)


def _per_request(counts: Iterable[tuple[str, int]]) -> int:
    """Sum each request's greatest count, as its choices share a prompt."""
    most: dict[str, int] = {}
    for request, count in counts:
        most[request] = max(count, most.get(request, 0))
    return sum(most.values())


def _awaited(place: Place, phases: Sequence[Phases], standings: Sequence[Standing]) -> str | None:
    if not phases:
        return "its model"
    if place in ("decoding", "prefilling"):
        return None
    return next(
        (one.waits_for.value for one in standings if one.waits_for is not WaitReason.STEP), None
    )


class StandingsAsked:
    """The last answer of the schedulers. `paces` are prompt tokens a second."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._known: ByExchange = {}
        self.paces: Mapping[Exchange, float] = {}
        self._asked = self._answered = -_ASK_SECONDS
        self._asking: asyncio.Task[None] | None = None

    async def of(self, under_way: Iterable[Exchange]) -> ByExchange:
        """Return the standings of these requests, a second old, or older in a long step."""
        now = time.monotonic()
        wanted = {exchange.model for exchange in under_way if exchange.phases}
        models = [m for m in self._models.loaded() if label_of(m.names[0]) in wanted]
        if self._asking is None and now - self._asked >= _ASK_SECONDS:
            self._asked = now
            if not models:
                self._known, self.paces = {}, {}
                return self._known
            self._asking = asyncio.create_task(self._ask(models))
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=_PATIENCE_SECONDS)
        return self._known

    async def _ask(self, models: Sequence[ServedModel]) -> None:
        standings: dict[Exchange, list[Standing]] = {}
        try:
            for model in models:
                with suppress(OmlxError):  # it was unloaded meanwhile
                    for standing in await model.engine.standings():
                        exchange = exchange_of_engine_id(standing.request)
                        if exchange is not None:
                            standings.setdefault(exchange, []).append(standing)
            self._take(standings, time.monotonic())
        finally:
            self._asking = None

    def _take(self, standings_now: ByExchange, now: float) -> None:
        seconds = now - self._answered
        gained = {
            exchange: prefilled(standings) - prefilled(self._known.get(exchange, ()))
            for exchange, standings in standings_now.items()
        }
        self.paces = {exchange: n / seconds for exchange, n in gained.items() if n > 0}
        self._known, self._answered = standings_now, now
