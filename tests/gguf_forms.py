"""Parameters of mlx-lm in the form that llama.cpp gives them, written apart from what undoes it."""

from collections.abc import Callable, Mapping

import numpy as np

from tests.gguf_families import HEADS, KV_HEADS
from tests.models.tiny_gguf import permuted

Array = np.ndarray
Form = Callable[[Array], Array]
KEY_HEADS, VALUE_HEADS, STATE = 2, 4, 32  # of Qwen 3.5's linear layers


def tiled(rows: Array) -> Array:
    """Put the first value head of each key head first, then the second of each."""
    heads = np.split(rows, VALUE_HEADS)
    each = VALUE_HEADS // KEY_HEADS
    return np.concatenate([heads[key * each + i] for i in range(each) for key in range(KEY_HEADS)])


def values_tiled(rows: Array) -> Array:
    start = 2 * KEY_HEADS * STATE
    return np.concatenate([rows[:start], tiled(rows[start:])])


PERMUTED: Mapping[str, Form] = {
    "attn_q": lambda rows: permuted(rows, HEADS),
    "attn_k": lambda rows: permuted(rows, KV_HEADS),
}
QWEN35: Mapping[str, Form] = {
    "attn_qkv": values_tiled,
    "attn_gate": tiled,
    "ssm_alpha": tiled,
    "ssm_beta": tiled,
    "ssm_dt": tiled,
    "ssm_a": lambda log: tiled(-np.exp(log)),
    "ssm_conv1d": lambda kernel: values_tiled(kernel[..., 0]),
    "ssm_out": lambda rows: np.ascontiguousarray(tiled(rows.T).T),
    "ffn_gate_inp_shexp": lambda rows: rows[0],
}
QWEN3_NEXT: Mapping[str, Form] = {
    "ssm_a": lambda log: -np.exp(log),
    "ssm_conv1d": lambda kernel: kernel[..., 0],
    "ffn_gate_inp_shexp": lambda rows: rows[0],
}
LFM2: Mapping[str, Form] = {"shortconv.conv": lambda kernel: kernel[..., 0]}
FORMS: Mapping[str, Mapping[str, Form]] = {
    **dict.fromkeys(
        ("llama", "mixtral", "granite", "granitemoe", "smollm3", "minicpm", "mistral3"), PERMUTED
    ),
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen2moe"), QWEN35),
    "qwen3next": QWEN3_NEXT,
    **dict.fromkeys(("lfm2", "lfm2moe"), LFM2),
}
NORM_OFFSETS = dict.fromkeys(("gemma", "gemma2", "gemma3", "nemotron"), 1.0)
