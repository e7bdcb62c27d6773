"""Undoes what llama.cpp does to tensors as it converts a model. Takes arrays of NumPy or MLX; those
of quantised tensors have their rows as the plain ones have."""

from collections.abc import Callable, Mapping
from typing import Any

from omlx_server.core.gguf.fields import Config

Change = Callable[[Any, Config], Any]


def _in_halves(heads: str) -> Change:
    """Undo the order of rows of q and k, whose rope pairs neighbours.

    Rows of one head (d of them, half = d/2):
        mlx-lm      0 .. half-1 first parts   half .. d-1 second parts
        llama.cpp   first, second, first, second, ..
    """

    def change(array: Any, config: Config) -> Any:
        count, (rows, *others) = config[heads], array.shape
        pairs = array.reshape(count, rows // count // 2, 2, *others)
        return pairs.swapaxes(1, 2).reshape(rows, *others)

    return change


def _by_key_head(array: Any, config: Config) -> Any:
    """Undo the order of Qwen 3.5's value heads. Those of one key head are neighbours in mlx-lm; in
    llama.cpp the first of each key head come first."""
    keys, (rows, *others) = config["linear_num_key_heads"], array.shape
    each = config["linear_num_value_heads"] // keys
    return array.reshape(each, keys, -1, *others).swapaxes(0, 1).reshape(rows, *others)


def _values_by_key_head(array: Any, config: Config) -> Any:
    """Do so for the values that lie behind queries and keys."""
    start = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    array[start:] = _by_key_head(array[start:], config)
    return array


def _columns_by_key_head(array: Any, config: Config) -> Any:
    return _by_key_head(array.swapaxes(0, 1), config).swapaxes(0, 1)


def _with_one(array: Any, config: Config) -> Any:
    return array[..., None]


PERMUTED: Mapping[str, Change] = {
    "attn_q": _in_halves("num_attention_heads"),
    "attn_k": _in_halves("num_key_value_heads"),
}
SHORT_CONVOLUTION: Mapping[str, Change] = {"shortconv.conv": _with_one}
SHARED_GATE: Mapping[str, Change] = {"ffn_gate_inp_shexp": lambda array, _: array.reshape(1, -1)}
QWEN3_NEXT: Mapping[str, Change] = {
    **SHARED_GATE,
    "ssm_a": lambda array, _: (-array).log(),
    "ssm_conv1d": _with_one,
}
QWEN35: Mapping[str, Change] = {
    "attn_qkv": _values_by_key_head,
    "attn_gate": _by_key_head,
    "ssm_alpha": _by_key_head,
    "ssm_beta": _by_key_head,
    "ssm_dt": _by_key_head,
    "ssm_a": lambda array, config: (-_by_key_head(array, config)).log(),
    "ssm_conv1d": lambda array, config: _values_by_key_head(array, config)[..., None],
    "ssm_out": _columns_by_key_head,
}
