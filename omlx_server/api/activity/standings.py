"""Ask the schedulers about requests, at most once a second. Runs on the asyncio thread."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from omlx_server.api.activity.lanes import prefilled
from omlx_server.api.http.exchange import Exchange, of_engine_id
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.scheduler.standings import Standing
from omlx_server.errors import OmlxError

EVERY_SECONDS = 1.0
# The mlx thread answers between two steps, and a step with a large chunk may take seconds.
_PATIENCE_SECONDS = 0.5

ByExchange = Mapping[Exchange, Sequence[Standing]]


class StandingsAsked:
    """The last answer of the schedulers. `paces` are prompt tokens a second."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._known: ByExchange = {}
        self.paces: Mapping[Exchange, float] = {}
        self._asked = self._answered = -EVERY_SECONDS
        self._asking: asyncio.Task[None] | None = None

    async def of(self, under_way: Iterable[Exchange]) -> ByExchange:
        """Return the standings of these requests, a second old, or older in a long step."""
        now = time.monotonic()
        wanted = {exchange.model for exchange in under_way if exchange.phases}
        models = [m for m in self._models.loaded() if label_of(m.names[0]) in wanted]
        if self._asking is None and now - self._asked >= EVERY_SECONDS:
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
                for standing in await _standings_of(model):
                    exchange = of_engine_id(standing.request)
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


async def _standings_of(model: ServedModel) -> Sequence[Standing]:
    try:
        return await model.engine.standings()
    except OmlxError:  # it was unloaded meanwhile
        return ()
