"""The size of a model's keys and values, by its config.json. Pure."""

from collections.abc import Mapping
from typing import Any

_HALF = 2  # bytes of a number in half precision
_FULL = ("full_attention", "attention")


def token_bytes(config: Mapping[str, Any]) -> int | None:
    """Return the bytes of a token in the layers that keep all, None if the config has no layers."""
    text = config.get("text_config")
    values = {**config, **(text if isinstance(text, Mapping) else {})}
    layers, heads = _count(values, "num_hidden_layers"), _count(values, "num_attention_heads")
    if not (layers and heads):
        return None
    if latent := _count(values, "kv_lora_rank"):
        return layers * (latent + _count(values, "qk_rope_head_dim")) * _HALF
    width = _count(values, "head_dim") or _count(values, "hidden_size") // heads
    kv_heads = _count(values, "num_key_value_heads") or heads
    return _full_layers(values, layers) * 2 * kv_heads * width * _HALF or None


def _full_layers(values: Mapping[str, Any], layers: int) -> int:
    """Return the layers without a window or a recurrent state."""
    types = values.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        return sum(kind in _FULL for kind in types)
    for key in ("full_attention_interval", "sliding_window_pattern"):
        if every := _count(values, key):
            return layers // every
    return layers


def _count(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
