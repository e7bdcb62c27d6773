"""How many bytes a token of one layer takes by the definition of its format. Pure arithmetic, apart
from the code that makes the bytes."""

from scripts.benchmarks.kv_variants import GROUP_SIZE, Variant

_SCALE_BYTES = 2


def bytes_per_token(variant: Variant, heads: int, head_dim: int, width: int) -> float:
    """Keys and values of `heads` heads, where the model computes in `width` bytes a number."""
    numbers = heads * head_dim
    match variant.scheme:
        case "none":
            return 2 * numbers * width
        case "affine" | "rotated":
            # A scale and a bias for each group, as wide as the model computes.
            return 2 * numbers * (variant.bits / 8 + 2 * width / GROUP_SIZE)
        case "turboquant":
            # A scale in f16 for each vector. Keys have the floor of 2.5 or 3.5 bits, values one
            # more: the mean is the bits.
            return 2 * numbers * variant.bits / 8 + 2 * heads * _SCALE_BYTES
    raise ValueError(f"the format of {variant.name} is not known")
