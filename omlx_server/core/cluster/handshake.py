"""What ranks say to each other before they compute together, and while they do. Plain values.

    rank r      Hello                  who it is, and its versions
    rank 0      Welcome, or Refused    which model is to be loaded, and how
    rank r      Ready, or Refused      it has the same files, and where it can be reached
    rank 0      RollCall               when all are ready: who is still there?
    rank r      Ready                  once more
    rank 0      Form                   where all ranks can be reached
    rank 0      commands (core/cluster/commands.py)
    both        Alive                  now and then

A rank that can't go on says Refused at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.core.cluster.hosts import Devices


@dataclass(frozen=True, slots=True)
class Hello:
    """What a rank says first. `versions` are those of what must be the same on all ranks: this
    program, MLX and mlx-lm; `machine` is the name of its machine."""

    rank: int
    versions: Sequence[tuple[str, str]]
    machine: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The model to load, of `size` ranks: the names by which it may be found, the fingerprint of
    its files, its KV scheme (name, bits, group size) and the tokens of a block, 0 where there is no
    prefix cache. With `has_cold` evicted blocks go to a cold tier. `ips`: the addresses at which
    the rank is to be reached. `rdma`: the devices of all ranks, where they connect by JACCL."""

    size: int
    ips: Sequence[str]
    names: Sequence[str]
    fingerprint: str
    kv: tuple[str, float, int]
    block_tokens: int
    has_cold: bool
    rdma: Devices = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """The "IP:port" at which a rank can be reached by its neighbours."""

    addresses: Sequence[str]


@dataclass(frozen=True, slots=True)
class RollCall:
    """Asks for `Ready` once more: a rank that was stopped is noticed only after a while, and must
    not be waited for while MLX connects."""


@dataclass(frozen=True, slots=True)
class Formation:
    """The addresses of all ranks, which connect and load the model. With `sums`, which are (bytes,
    rounds) each, they load nothing: they sum arrays of so many bytes so many times."""

    addresses: Sequence[Sequence[str]]
    sums: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class RankRefusal:
    """Why a rank can't take part, in one line."""

    why: str


@dataclass(frozen=True, slots=True)
class Alive:
    """A rank lives. `done` counts the messages that it has handled; `active` and `peak` are
    bytes of arrays."""

    done: int = 0
    active: int = 0
    peak: int = 0


Message = Hello | Welcome | Ready | RollCall | Formation | RankRefusal | Alive
