"""The requests for work under way, and the last ones. Runs on the asyncio thread."""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from omlx_server.api.activity.answers import RequestDone
from omlx_server.api.http.exchange import Exchange, work_of

MOST_DONE = 200
_ORDERS = "/admin/"


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
