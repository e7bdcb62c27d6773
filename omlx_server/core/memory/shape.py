"""What the transient memory of a step depends on: a model's sizes, and how much a step computes.
Frozen values."""

from dataclasses import dataclass

from omlx_server.core.memory.kv import LayerKv


@dataclass(frozen=True, slots=True)
class Tiles:
    """How much of quantised keys is unpacked at a time: so many numbers, in all rows and heads
    together, for `many_rows` query rows a head and for fewer; no less than `fewest` tokens."""

    many_rows: int
    numbers_of_many: int
    numbers_of_few: int
    fewest: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model in elements. `width` is the bytes of a number that it computes in;
    `intermediate` is what one token is widened to, so k times an expert's where k are chosen.
    `tiles`: keys and values are held in few bits, and attention unpacks them tile by tile."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    width: int
    layers: tuple[LayerKv, ...] = ()
    tiles: Tiles | None = None


@dataclass(frozen=True, slots=True)
class Prefill:
    """One forward over chunks of `rows` prompts, padded to `tokens`, behind `context` tokens each.
    Several rows are merged into one batch first."""

    rows: int
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class Decode:
    """One token for each of `rows`, of which the longest holds `context`. It `grows` the buffers if
    they are full, one layer after the other; plain ones are when rows came, and then every 256
    tokens. That is also room for rows that come or go, which are copied by the layer too."""

    rows: int
    context: int
    grows: bool = False


@dataclass(frozen=True, slots=True)
class StepShape:
    """One turn of the engine: the decode, then the prefills one after the other."""

    decode: Decode | None = None
    prefills: tuple[Prefill, ...] = ()
