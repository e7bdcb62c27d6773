"""Health and metrics of a cluster's ranks, from a report of each state."""

from omlx_server.api.cluster.report import ClusterMetrics, rank_health
from omlx_server.core.cluster.handshake import Alive
from omlx_server.core.cluster.state import ClusterReport, RankState, RankStatus

REPORT = ClusterReport(
    [
        RankState(0, "localhost", RankStatus.HERE, alive=Alive(active=5, peak=7)),
        RankState(1, "studio", RankStatus.LOST, "its connection ended"),
    ],
    restarts=2,
)


def samples(report: ClusterReport | None) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("rank", "")): sample.value
        for metric in ClusterMetrics(lambda: report).collect()
        for sample in metric.samples
    }


def test_a_rank_without_a_sign_of_life_has_no_bytes() -> None:
    here, lost = rank_health(REPORT)
    assert (here["status"], here["active_bytes"], here["peak_bytes"]) == ("here", 5, 7)
    assert (lost["status"], lost["problem"]) == ("lost", "its connection ended")
    assert lost["active_bytes"] is None and here["problem"] is None


def test_each_rank_and_the_restarts_are_counted() -> None:
    counted = samples(REPORT)
    assert counted["omlx_cluster_rank_up", "0"] == 1 and counted["omlx_cluster_rank_up", "1"] == 0
    assert counted["omlx_cluster_rank_active_bytes", "0"] == 5
    assert ("omlx_cluster_rank_active_bytes", "1") not in counted
    assert counted["omlx_cluster_restarts_total", ""] == 2


def test_without_a_cluster_there_is_nothing() -> None:
    assert rank_health(None) == [] and samples(None) == {}
