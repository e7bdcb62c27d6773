"""The ranks of a cluster in health and metrics."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from omlx_server.api.metric_helpers import OWN, counters, gauges
from omlx_server.api.rank_health import RankHealth
from omlx_server.core.cluster.state import ClusterReport, RankState, RankStatus

_RANK = "rank"


class ClusterMetrics(Collector):
    """Without samples where there is no cluster."""

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


def rank_health(report: ClusterReport | None) -> list[RankHealth]:
    return [_rank(state) for state in report.ranks] if report is not None else []


def _rank(state: RankState) -> RankHealth:
    alive = state.alive
    return {
        "rank": state.rank,
        "host": state.host,
        "status": state.status.value,
        "problem": state.problem or None,
        "active_bytes": alive.active if alive else None,
        "peak_bytes": alive.peak if alive else None,
        "done": alive.done if alive else None,
    }
