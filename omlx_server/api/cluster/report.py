"""The ranks of a cluster in health and metrics."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from omlx_server.api.metric_helpers import OWN, counters, gauges
from omlx_server.api.rank_health import RankHealth
from omlx_server.core.cluster.state import ClusterReport, RankStatus


class ClusterMetrics(Collector):
    """Without samples where there is no cluster."""

    def __init__(self, report: Callable[[], ClusterReport | None]) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        report = self._report()
        ranks = report.ranks if report is not None else ()
        up = {(str(state.rank),): float(state.status is RankStatus.HERE) for state in ranks}
        active = {(str(state.rank),): float(state.alive.active) for state in ranks if state.alive}
        restarts = {(): float(report.restarts)} if report is not None else {}
        yield gauges(
            f"{OWN}cluster_rank_up",
            "1 while a rank of the cluster computes, else 0, by the rank.",
            ("rank",),
            up,
        )
        yield gauges(
            f"{OWN}cluster_rank_active_bytes",
            "Bytes of arrays by the rank that holds them, as its last sign of life said.",
            ("rank",),
            active,
        )
        yield counters(
            f"{OWN}cluster_restarts",
            "Times that the server started anew because a rank was lost.",
            (),
            restarts,
        )


def rank_health(report: ClusterReport | None) -> list[RankHealth]:
    return [
        {
            "rank": state.rank,
            "host": state.host,
            "status": state.status.value,
            "problem": state.problem or None,
            "active_bytes": state.alive.active if state.alive else None,
            "peak_bytes": state.alive.peak if state.alive else None,
            "done": state.alive.done if state.alive else None,
        }
        for state in (report.ranks if report is not None else ())
    ]
