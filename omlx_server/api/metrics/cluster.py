"""Metrics of the ranks of a cluster, without samples where there is none."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from omlx_server.api.metric_helpers import OWN, counters, gauges
from omlx_server.core.cluster.state import ClusterReport, RankStatus

_RANK = "rank"


def no_cluster() -> ClusterReport | None:
    return None


class ClusterMetrics(Collector):
    def __init__(self, report: Callable[[], ClusterReport | None]) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        report = self._report()
        ranks = report.ranks if report is not None else ()
        up = {(str(one.rank),): float(one.status is RankStatus.HERE) for one in ranks}
        active = {(str(one.rank),): float(one.alive.active) for one in ranks if one.alive}
        restarts = {(): float(report.restarts)} if report is not None else {}
        yield gauges(
            f"{OWN}cluster_rank_up",
            "1 while a rank of the cluster computes, else 0, by the rank.",
            (_RANK,),
            up,
        )
        yield gauges(
            f"{OWN}cluster_rank_active_bytes",
            "Bytes of arrays by the rank that holds them, as its last sign of life said.",
            (_RANK,),
            active,
        )
        yield counters(
            f"{OWN}cluster_restarts",
            "Times that the server started anew because a rank was lost.",
            (),
            restarts,
        )
