"""In what pieces attention reads quantised keys here, as the planner is told. The numbers are those
of `kv/affine_tiles.py` and `kv/turboquant_tiles.py`; a test holds them together."""

from omlx_server.compute import device
from omlx_server.compute.kv.base import Scheme
from omlx_server.compute.kv.turboquant import TurboQuant
from omlx_server.core.memory.shape import Tiles

_ALWAYS_FEW = 1 << 30


def tiles_of(scheme: Scheme | None) -> Tiles | None:
    """None where keys and values are not quantised. On a GPU few rows may get wider tiles than
    this, of codes that are never unpacked."""
    if scheme is None:
        return None
    if isinstance(scheme, TurboQuant):
        return Tiles(_ALWAYS_FEW, 0, 1 << 18, 128) if device.is_cpu() else Tiles(32, 0, 0, 512)
    return Tiles(64, 0, 1 << 20, 512)
