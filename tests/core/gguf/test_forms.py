"""The forms that tensors of a GGUF file have in MLX."""

from omlx_server.core.gguf.forms import types_again
from omlx_server.core.gguf.head import TYPES, TensorPlace


def test_types_whose_groups_are_too_small_are_quantised_again() -> None:
    tensors = [TensorPlace(kind.name, (1, 256), kind, 0, 1) for kind in TYPES.values()]
    assert types_again(tensors) == ["Q2_K", "Q3_K", "Q6_K"]
    assert types_again(one for one in tensors if one.name not in ("Q2_K", "Q3_K")) == ["Q6_K"]
    assert types_again(one for one in tensors if one.name.startswith("Q4")) == []
