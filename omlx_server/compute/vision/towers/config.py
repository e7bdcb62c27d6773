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
        values = [self._fields[name] for name in names if self._fields.get(name) is not None]
        return _checked_size(names[0], values[0] if values else default)

    def blocks(self, name: str, depth: int) -> tuple[int, ...]:
        """Return distinct numbers of a tower's `depth` blocks, ascending."""
        value = self._fields.get(name)
        if not isinstance(value, list) or not all(type(one) is int and one >= 0 for one in value):
            raise _wrong_value(name, value)
        if value != sorted(set(value)):
            raise _wrong_value(name, value)
        check(all(number < depth for number in value), f"{name} names blocks that are not there")
        return tuple(value)

    def number(self, name: str, default: float) -> float:
        """Return a finite number above 0."""
        value = self._fields.get(name, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise _wrong_value(name, value)
        return float(value)

    def activation(self, default: str) -> str:
        value = self._fields.get("hidden_act", default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise _wrong_value("hidden_act", value)
        return value


def outer_size(config: Mapping[str, Any], name: str, default: int) -> int:
    """Return a whole number of at least 1 outside of `vision_config`. Raises ModelUnavailable."""
    value = config.get(name)
    return _checked_size(name, default if value is None else value, table="")


def text_width(config: Mapping[str, Any], default: int) -> int:
    """Return the width of the language model. Raises ModelUnavailable."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise ModelUnavailable("config.json: text_config is missing or no object")
    return outer_size(text, "hidden_size", default)


def check(condition: bool, problem: str) -> None:
    """Raise ModelUnavailable with the `problem` unless the condition holds."""
    if not condition:
        raise ModelUnavailable(f"config.json: vision_config: {problem}")


def _checked_size(name: str, value: object, table: str = "vision_config.") -> int:
    if type(value) is not int or value < 1:
        raise _wrong_value(name, value, table)
    return value


def _wrong_value(name: str, value: object, table: str = "vision_config.") -> ModelUnavailable:
    return ModelUnavailable(f"config.json: {table}{name} is missing or makes no sense: {value!r}")
