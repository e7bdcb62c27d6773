"""The messages by which ranks come together. Plain values.

    rank r      Hello                       who it is, and its versions
    rank 0      Welcome, or RankRefusal     which model is to be loaded, and how
    rank r      Ready, or RankRefusal       it has the same files, and where it can be reached
    rank 0      RollCall                    when all are ready: who is still there?
    rank r      Ready                       once more
    rank 0      Formation                   where all ranks can be reached
    rank 0      commands (core/cluster/commands.py)
    both        Alive                       now and then

A rank that can't go on sends RankRefusal at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.core.cluster.hosts import Devices


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank's first message. `versions` must be equal on all ranks."""

    rank: int
    versions: Sequence[tuple[str, str]]
    machine: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The model to load on `size` ranks."""

    size: int
    ips: Sequence[str]
    names: Sequence[str]  # any of them
    fingerprint: str
    kv: tuple[str, float, int]  # the scheme's name, bits, group size
    block_tokens: int
    has_cold: bool
    rdma: Devices = ()


@dataclass(frozen=True, slots=True)
class Ready:
    addresses: Sequence[str]


@dataclass(frozen=True, slots=True)
class RollCall:
    """A request for another `Ready`."""


@dataclass(frozen=True, slots=True)
class Formation:
    """All ranks' addresses; with `sums` they only sum arrays of (bytes, rounds)."""

    addresses: Sequence[Sequence[str]]
    sums: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class RankRefusal:
    why: str


@dataclass(frozen=True, slots=True)
class Alive:
    """A sign of life, with the number of handled messages and bytes of arrays."""

    done: int = 0
    active: int = 0
    peak: int = 0


Message = Hello | Welcome | Ready | RollCall | Formation | RankRefusal | Alive
