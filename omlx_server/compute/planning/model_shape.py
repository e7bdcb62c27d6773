"""A loaded model as the planner of memory sees it. Mlx thread."""

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.registry import codec_of, leaves
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.base import Scheme
from omlx_server.compute.kv.turboquant import TurboQuant
from omlx_server.compute.model.loader import LoadedModel, ModelDims
from omlx_server.compute.planning.filled import layers_of
from omlx_server.core.memory.kv import Keeps, LayerKv
from omlx_server.core.memory.shape import ModelShape, Tiles

_NARROW = ("float16", "bfloat16")
_ALWAYS_FEW = 1 << 30


def shape_of(loaded: LoadedModel) -> ModelShape:
    """Runs one token to see what the caches hold.

    Raises:
        CannotFill: there is a cache of a class that is not known.
    """
    return _shape(loaded.dims, layers_of(loaded.model), tiles_of(scheme_of(loaded)))


def scheme_of(loaded: LoadedModel) -> Scheme | None:
    """That of its first quantised cache; None when there is none."""
    fresh = leaves(cache_ops.new_caches(loaded.model))
    schemes = (codec_of(leaf).scheme(leaf) for leaf in fresh)
    return next(filter(None, schemes), None)


def tiles_of(scheme: Scheme | None) -> Tiles | None:
    """In what pieces attention reads keys and values of a scheme; None where they are not
    quantised. The numbers are those of `kv/affine_tiles.py` and `kv/turboquant_tiles.py`. On a GPU
    few rows may get wider tiles than this, of codes that are never unpacked."""
    if scheme is None:
        return None
    if isinstance(scheme, TurboQuant):
        return Tiles(_ALWAYS_FEW, 0, 1 << 18, 128) if device.is_cpu() else Tiles(32, 0, 0, 512)
    return Tiles(64, 0, 1 << 20, 512)


def structural_shape(dims: ModelDims) -> ModelShape:
    """Without a look at the caches: as if every layer kept all of every token, as it came."""
    token = 2 * dims.kv_heads * dims.head_dim * _width(dims)
    return _shape(dims, (LayerKv(Keeps.PADDED, token, dims.layers),), None)


def _shape(dims: ModelDims, layers: tuple[LayerKv, ...], tiles: Tiles | None) -> ModelShape:
    return ModelShape(
        hidden=dims.hidden,
        intermediate=dims.intermediate,
        heads=dims.heads,
        kv_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        vocab=dims.vocab,
        width=_width(dims),
        layers=layers,
        tiles=tiles,
    )


def _width(dims: ModelDims) -> int:
    return 2 if dims.dtype in _NARROW else 4
