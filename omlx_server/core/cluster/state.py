"""The states of a cluster's ranks. Plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from omlx_server.core.cluster.handshake import Alive


class RankStatus(StrEnum):
    """AWAY: its process does not run, or has not come. CHECKING: it looks for the model. READY: it
    waits for the others. HERE: it computes. LOST: its connection ended. REFUSED: it can't take
    part."""

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

    @property
    def is_whole(self) -> bool:
        return all(state.status is RankStatus.HERE for state in self.ranks)
