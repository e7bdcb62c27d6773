"""The states of a cluster's ranks. Plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from omlx_server.core.cluster.handshake import Alive


class RankStatus(StrEnum):
    """The states of a rank."""

    AWAY = "away"  # not running, or not come
    CHECKING = "checking"  # looks for the model
    READY = "ready"  # waits for the others
    HERE = "here"  # computes
    LOST = "lost"  # its connection ended
    REFUSED = "refused"  # can't take part


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
