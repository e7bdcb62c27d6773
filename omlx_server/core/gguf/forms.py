"""The form that a tensor of each type has in MLX."""

from collections.abc import Iterable
from math import prod

from omlx_server.core.gguf.head import TensorPlace

PLAIN = ("F32", "F16", "BF16")
MXFP4 = "MXFP4"
AGAIN = ("Q2_K", "Q3_K", "Q6_K")
"""Types whose values are quantised again, in 8 bits: their groups are smaller than MLX's."""
# Bits of a value in MLX's affine groups of 32.
BITS = {
    "Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q4_K": 4, "Q5_K": 5,
    **dict.fromkeys(AGAIN, 8),
}  # fmt: skip
GROUP = 32


def check_types(tensors: Iterable[TensorPlace]) -> None:
    """Raise ValueError for a tensor of a type that MLX has no form for."""
    for tensor in tensors:
        if (name := tensor.kind.name) not in (*PLAIN, MXFP4, *BITS):
            raise ValueError(
                f"it has tensors of type {name}, which MLX has no form for; "
                "a file of Q4_K_M, Q5_K_M or Q8_0 can be served"
            )


def bytes_in_mlx(tensors: Iterable[TensorPlace], number_bytes: int) -> int:
    """`number_bytes`: of a scale, an offset and, at most, a plain value."""
    return sum(_bytes_of(tensor, number_bytes) for tensor in tensors)


def count_values(tensors: Iterable[TensorPlace]) -> int:
    return sum(prod(tensor.shape) for tensor in tensors)


def types_again(tensors: Iterable[TensorPlace]) -> list[str]:
    """Return the types of a file's tensors that are quantised again."""
    types = {tensor.kind.name for tensor in tensors}
    return [name for name in AGAIN if name in types]


def main_type(tensors: Iterable[TensorPlace]) -> str:
    """Return the type that most bytes of a file are of."""
    sizes = dict[str, int]()
    for tensor in tensors:
        sizes[tensor.kind.name] = sizes.get(tensor.kind.name, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__, default="")


def _bytes_of(tensor: TensorPlace, number_bytes: int) -> int:
    kind, values = tensor.kind.name, prod(tensor.shape)
    if kind in PLAIN:
        return min(tensor.nbytes, values * number_bytes)
    if kind == MXFP4:
        return tensor.nbytes
    return values * BITS[kind] // 8 + values // GROUP * 2 * number_bytes
