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
    """Quantised keys unpacked at a time, for many or few query rows a head, at least those of
    `fewest` tokens."""

    many_rows: int
    numbers_of_many: int
    numbers_of_few: int
    fewest: int
    number_bytes: int = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes in elements. `width` is in bytes. `intermediate` counts all chosen experts.
    `copied_at_once` bytes of caches exist twice when rows come or go."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    width: int
    layers: tuple[LayerKv, ...] = ()
    tiles: TileSizes | None = None
    drafter: "ModelShape | None" = None
    copied_at_once: int = 16 << 20
    beside_host: bool = False


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """One forward over chunks of `rows` prompts, padded to `tokens`, behind at most `context`
    tokens, some stored if it `refers`."""

    rows: int
    tokens: int
    context: int
    refers: bool = False


@dataclass(frozen=True, slots=True)
class Decode:
    """One forward over `tokens` of each row, attending to `context` tokens on average. `refers`:
    some are stored."""

    rows: int
    context: int
    grows: bool = False
    refers: bool = False
    tokens: int = 1
    uneven: bool = False
    catches_up: bool = False


@dataclass(frozen=True, slots=True)
class StepShape:
    """One turn: the decode, then the prefills one after the other."""

    decode: Decode | None = None
    prefills: tuple[PrefillShape, ...] = ()
