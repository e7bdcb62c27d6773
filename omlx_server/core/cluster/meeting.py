"""What ranks say to each other before they compute together, and while they do. Plain values.

    rank r      Hello                          what it is and has
    rank 0      Welcome, or Refused            which model is to be loaded, and how
    rank r      Ready, or Refused              it has the same files, and where it can be reached
    rank 0      Form                           where all ranks can be reached
    rank r      Loaded, or Refused             its part of the model is in memory
    both        Alive                          now and then
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hello:
    """What a rank says first. `versions` are those of what must be the same on all ranks: this
    program, MLX and mlx-lm. `memory` is the limit of its process in bytes."""

    rank: int
    versions: Sequence[tuple[str, str]]
    machine: str
    memory: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The model to load, of `size` ranks: the names by which it may be found, the fingerprint of
    its files, its KV scheme (name, bits, group size) and the tokens of a block. `keeps_blocks`:
    whether there is a prefix cache; `keeps_cold`: whether evicted blocks go to a cold tier."""

    size: int
    names: Sequence[str]
    fingerprint: str
    kv: tuple[str, int, int]
    block_tokens: int
    keeps_blocks: bool
    keeps_cold: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """The "IP:port" at which a rank can be reached by its neighbours."""

    addresses: Sequence[str]


@dataclass(frozen=True, slots=True)
class Form:
    """Those of all ranks."""

    addresses: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rank's part of the model is in memory: bytes of its weights, and of a block of
    `block_tokens` tokens of it."""

    weight_bytes: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a rank can't take part, in one line."""

    why: str


@dataclass(frozen=True, slots=True)
class Alive:
    """A rank lives. `done` counts the messages that it has worked off; `active` and `peak` are
    bytes of arrays."""

    done: int = 0
    active: int = 0
    peak: int = 0


Said = Hello | Welcome | Ready | Form | Loaded | Refused | Alive
