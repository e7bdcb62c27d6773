"""What the transient memory of a step depends on: a model's sizes, and how much a step computes.
Frozen values."""

from dataclasses import dataclass

from omlx_server.core.memory.kv import LayerKv
from omlx_server.core.speculation.depth import DEPTHS

# How many numbers of plain keys or values in half precision are widened at a time, where rows refer
# to stored tokens; but no less than those of so many tokens.
WIDENED_AT_ONCE = 1 << 22
FEWEST_WIDENED = 512

FEW_QUERIES = 1 + DEPTHS[-1]
"""Up to so many queries a row of plain keys and values that refers to stored tokens is attended in
parts: those of a decode that verifies the longest draft."""

MOST_BEHIND = 8
"""When rows are so many tokens behind in a draft model, it takes them in beside a plain decode."""


@dataclass(frozen=True, slots=True)
class TileSizes:
    """How many numbers of quantised keys are unpacked at a time, in all rows and heads together:
    `numbers_of_many` from `many_rows` query rows a head on, `numbers_of_few` for fewer; but no less
    than those of `fewest` tokens. Unpacked, a number takes `number_bytes`."""

    many_rows: int
    numbers_of_many: int
    numbers_of_few: int
    fewest: int
    number_bytes: int = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model in elements. `width` is the bytes of a number that it computes with;
    `intermediate` is the width of the MLP for one token, so k times an expert's where k experts are
    chosen. With `tiles` keys and values are quantised, and attention unpacks them tile by tile.
    `layers` count those of a draft model, too, and `drafter` is the shape of that alone. When rows
    come or go, `copied_at_once` bytes of caches are there twice, or one array where that is
    larger. On a device that runs `beside_host` the chunks of a step are launched while its decode
    runs."""

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
    """One forward over chunks of `rows` prompts, padded to `tokens` tokens, behind at most
    `context` cached tokens each. The caches of several rows are merged into one batch first. Where
    one `refers` to stored tokens, these and its own are brought together, a layer at a time."""

    rows: int
    tokens: int
    context: int
    refers: bool = False


@dataclass(frozen=True, slots=True)
class Decode:
    """One forward over `tokens` of each of `rows` rows, each of which attends to `context` tokens,
    its padding counted, or to that on average (`kv.seen_together`). Where one `refers` to stored
    tokens, plain ones in half precision are widened, a tile at a time. Rows of different lengths
    are `uneven`. With `catches_up` a draft model may take in what rows are behind. With `grows` the
    buffers may have to grow, one layer after the other: plain ones do when rows came, and then
    every 256 tokens. That room also serves rows that come or go."""

    rows: int
    context: int
    grows: bool = False
    refers: bool = False
    tokens: int = 1
    uneven: bool = False
    catches_up: bool = False


@dataclass(frozen=True, slots=True)
class StepShape:
    """One turn of the engine: the decode, then the prefills one after the other."""

    decode: Decode | None = None
    prefills: tuple[PrefillShape, ...] = ()
