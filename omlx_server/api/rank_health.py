"""One process of a cluster in GET /health."""

from typing import Literal

from typing_extensions import TypedDict


class RankHealth(TypedDict):
    """A process of the cluster. Its bytes of arrays, and `done`, how many of rank 0's messages it
    has handled, are of its last sign of life; null before."""

    rank: int
    host: str
    status: Literal["away", "checking", "ready", "here", "lost", "refused"]
    problem: str | None
    active_bytes: int | None
    peak_bytes: int | None
    done: int | None
