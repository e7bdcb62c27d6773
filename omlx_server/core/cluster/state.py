"""The states of a cluster's ranks. Plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from omlx_server.core.cluster.handshake import Alive


class RankStatus(StrEnum):
    """AWAY: not running, or not come. CHECKING: looks for the model. READY: waits for the
    others. HERE: computes. LOST: its connection ended. REFUSED: can't take part."""

    AWAY = "away"
    CHECKING = "checking"
    READY = "ready"
    HERE = "here"
    LOST = "lost"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RankState:
    rank: int
    host: str
    status: RankStatus = RankStatus.AWAY
    problem: str = ""
    alive: Alive | None = None


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """All ranks, rank 0 first. `restarts` counts restarts of rank 0 after the loss of a rank."""

    ranks: Sequence[RankState]
    restarts: int = 0
