"""Reads the sizes of a vision tower from config.json."""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.errors import ModelUnavailable

Activation = Callable[[mx.array], mx.array]

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "quick_gelu": nn.gelu_fast_approx,
    "silu": nn.silu,
}


class VisionFields:
    """The fields of `vision_config`. Methods raise ModelUnavailable for missing or wrong values."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        fields = config.get("vision_config")
        if not isinstance(fields, Mapping):
            raise ModelUnavailable("config.json: vision_config is missing or no object")
        self._fields = fields

    def size(self, *names: str, default: int | None = None) -> int:
        """Return a whole number of at least 1, under the first of these names that exists."""
        value = next((self._fields[n] for n in names if self._fields.get(n) is not None), default)
        return _size(names[0], value)

    def blocks(self, name: str, depth: int) -> tuple[int, ...]:
        """Return distinct numbers of a tower's `depth` blocks, ascending."""
        value = self._fields.get(name)
        if not isinstance(value, list) or not all(type(one) is int and one >= 0 for one in value):
            raise _wrong(name, value)
        if value != sorted(set(value)):
            raise _wrong(name, value)
        check(all(number < depth for number in value), f"{name} names blocks that are not there")
        return tuple(value)

    def number(self, name: str, default: float) -> float:
        value = self._fields.get(name, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise _wrong(name, value)
        return float(value)

    def activation(self, default: str) -> str:
        value = self._fields.get("hidden_act", default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise _wrong("hidden_act", value)
        return value


def outer_size(config: Mapping[str, Any], name: str, default: int) -> int:
    """Return a whole number of at least 1 beside `vision_config`. Raises ModelUnavailable."""
    value = config.get(name)
    return _size(name, default if value is None else value, "")


def text_width(config: Mapping[str, Any], default: int) -> int:
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise ModelUnavailable("config.json: text_config is missing or no object")
    return outer_size(text, "hidden_size", default)


def check(holds: bool, what: str) -> None:
    """Raise ModelUnavailable unless it `holds`."""
    if not holds:
        raise ModelUnavailable(f"config.json: vision_config: {what}")


def _size(name: str, value: object, outer: str = "vision_config.") -> int:
    if type(value) is not int or value < 1:
        raise _wrong(name, value, outer)
    return value


def _wrong(name: str, value: object, outer: str = "vision_config.") -> ModelUnavailable:
    return ModelUnavailable(f"config.json: {outer}{name} is missing or makes no sense: {value!r}")
