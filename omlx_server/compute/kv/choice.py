"""From what is configured to a scheme."""

from omlx_server.compute.kv.affine import Affine
from omlx_server.compute.kv.base import Scheme
from omlx_server.compute.kv.rotated import Rotated
from omlx_server.compute.kv.turboquant import TurboQuant


def make_scheme(name: str, bits: float, group_size: int) -> Scheme | None:
    """None for "none". `group_size` is for affine and rotated.

    Raises:
        ValueError: there is no such scheme, or not of so many bits.
    """
    match name:
        case "none":
            return None
        case "affine":
            return Affine(_whole(bits), group_size)
        case "rotated":
            return Rotated.of(_whole(bits), group_size)
        case "turboquant":
            return TurboQuant.of_bits(bits)
    raise ValueError(f"there is no scheme {name}")


def _whole(bits: float) -> int:
    if bits != int(bits):
        raise ValueError(f"MLX quantises to whole bits, not to {bits:g}")
    return int(bits)
