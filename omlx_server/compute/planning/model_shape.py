"""Describes a loaded model to the memory planner. Mlx thread."""

from dataclasses import replace

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.registry import codec_of, leaves
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.kv.schemes import affine, turboquant_tiles
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.turboquant import TurboQuant
from omlx_server.compute.model.loader import LoadedModel, ModelDims
from omlx_server.compute.planning.probe import layers_of
from omlx_server.core.memory.kv import Keeps, LayerKv, ModelShape, TileSizes

_HALF_PRECISION = ("float16", "bfloat16")


def shape_of(loaded: LoadedModel) -> ModelShape:
    """Return a loaded model's shape. Runs it on one token. Raises CannotFill."""
    loaded.ranks.feed_one_token()
    shape = _make_shape(loaded.dims, layers_of(loaded.model), tiles_of(scheme_of(loaded)))
    if loaded.drafter is None:
        return shape
    drafter = loaded.drafter
    return replace(shape, drafter=_make_shape(drafter.dims, layers_of(drafter.model), None))


def scheme_of(loaded: LoadedModel) -> Scheme | None:
    """Return how the model's caches are quantised, None for plain ones."""
    fresh = leaves(cache_ops.new_caches(loaded.model))
    schemes = (codec_of(leaf).scheme(leaf) for leaf in fresh)
    return next(filter(None, schemes), None)


def tiles_of(scheme: Scheme | None) -> TileSizes | None:
    if scheme is None:
        return None
    if isinstance(scheme, TurboQuant):
        return turboquant_tiles.tile_sizes((scheme.key_bits, scheme.value_bits))
    return affine.TILE_SIZES


def structural_shape(dims: ModelDims) -> ModelShape:
    """Return an upper bound for unknown caches: plain, padded to the longest row."""
    token_bytes = 2 * dims.kv_heads * dims.head_dim * _number_bytes(dims)
    return _make_shape(dims, (LayerKv(Keeps.PADDED, token_bytes, dims.layers),), None)


def _make_shape(
    dims: ModelDims, layers: tuple[LayerKv, ...], tiles: TileSizes | None
) -> ModelShape:
    policy = device_policy.current()
    return ModelShape(
        hidden=dims.hidden,
        intermediate=dims.intermediate,
        heads=dims.heads,
        kv_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        vocab=dims.vocab,
        width=_number_bytes(dims),
        layers=layers,
        tiles=tiles,
        copied_at_once=policy.copied_at_once,
        beside_host=policy.beside_host,
    )


def _number_bytes(dims: ModelDims) -> int:
    return 2 if dims.dtype in _HALF_PRECISION else 4
