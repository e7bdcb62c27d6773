"""Metrics of every token; the library's counters would take a tenth of each token's time."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from omlx_server.api.metric_helpers import MODEL, counters

_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class TokenFlow:
    """The tokens of one model, and the times between two of a choice by bucket."""

    def __init__(self) -> None:
        self.tokens = 0
        self.gaps = [0] * (len(_SECONDS) + 1)
        self.seconds = 0.0

    def first(self, tokens: int) -> None:
        self.tokens += tokens
        self.gaps[0] += tokens - 1

    def next(self, tokens: int, seconds: float) -> None:
        """Count tokens that came `seconds` after their choice's last."""
        self.tokens += tokens
        self.gaps[0] += tokens - 1
        self.gaps[bisect_left(_SECONDS, seconds)] += 1
        self.seconds += seconds


class TokenFlows(Collector):
    def __init__(self, shared: str) -> None:
        self._shared = shared
        self._models: dict[str, TokenFlow] = {}

    def of(self, label: str) -> TokenFlow:
        return self._models.setdefault(label, TokenFlow())

    def collect(self) -> Iterator[Metric]:
        tokens = {(label,): flow.tokens for label, flow in self._models.items()}
        name = self._shared + "generation_tokens"
        yield counters(name, "Tokens that were written.", (MODEL,), tokens)
        gaps = HistogramMetricFamily(
            self._shared + "inter_token_latency_seconds",
            "Seconds between two tokens of a choice.",
            labels=(MODEL,),
        )
        names = [*map(str, _SECONDS), "+Inf"]
        for label, flow in self._models.items():
            buckets = list(zip(names, accumulate(flow.gaps), strict=True))
            gaps.add_metric([label], buckets, flow.seconds)
        yield gaps
