"""The states of a cluster's ranks. Plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from omlx_server.core.cluster.handshake import Alive


class RankStatus(StrEnum):
    """AWAY: its process does not run, or has not come. CHECKING: it looks for the model. READY: it
    waits for the others. HERE: it is in the group. LOST: it had come, then its connection ended or
    it could not go on. REFUSED: it can't take part."""

    AWAY = "away"
    CHECKING = "checking"
    READY = "ready"
    HERE = "here"
    LOST = "lost"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank: its machine, its status, and its problem, if any. `alive` is its last sign of
    life."""

    rank: int
    host: str
    status: RankStatus = RankStatus.AWAY
    problem: str = ""
    alive: Alive | None = None


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """All ranks, rank 0 first. `restarts` counts how often rank 0's process restarted because a
    rank was lost."""

    ranks: Sequence[RankState]
    restarts: int = 0

    @property
    def is_whole(self) -> bool:
        return all(state.status is RankStatus.HERE for state in self.ranks)
