"""The sizes of a model and of a step that its transient memory depends on."""

from dataclasses import dataclass

from omlx_server.core.memory.kv import LayerKv
from omlx_server.core.speculation.depth import DEPTHS

# Stored half-precision numbers widened at a time, but at least those of FEWEST_WIDENED tokens.
WIDENED_AT_ONCE = 1 << 22
FEWEST_WIDENED = 512

FEW_QUERIES = 1 + DEPTHS[-1]
"""Up to so many queries a row of plain keys and values that refers to stored tokens is attended in
parts: those of a decode that verifies the longest draft."""

MOST_BEHIND = 8
"""A draft model takes in a row's tokens beside a plain decode when it is this many behind."""


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Quantised keys unpacked at a time, for many or few query rows; at least `fewest` tokens."""

    many_rows: int
    numbers_of_many: int
    numbers_of_few: int
    fewest: int
    number_bytes: int = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model in elements."""

    hidden: int
    intermediate: int  # of all chosen experts
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    width: int  # bytes of an element
    layers: tuple[LayerKv, ...] = ()
    tiles: TileSizes | None = None
    drafter: "ModelShape | None" = None
    copied_at_once: int = 16 << 20  # bytes of caches that exist twice when rows come or go
    beside_host: bool = False  # work is launched before earlier work has ended


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """One forward over chunks of `rows` prompts."""

    rows: int
    tokens: int  # to which chunks are padded
    context: int  # the most tokens before a chunk
    refers: bool = False  # some of these are stored


@dataclass(frozen=True, slots=True)
class Decode:
    """One forward over the newest tokens of each row."""

    rows: int
    context: int  # mean tokens that a row attends to
    grows: bool = False  # buffers of caches grow
    refers: bool = False  # some tokens are stored
    tokens: int = 1  # of each row; more with drafts
    uneven: bool = False  # rows are of unequal length
    catches_up: bool = False  # a draft model takes in tokens beside it


@dataclass(frozen=True, slots=True)
class StepShape:
    """One turn: the decode, then the prefills one after the other."""

    decode: Decode | None = None
    prefills: tuple[PrefillShape, ...] = ()
