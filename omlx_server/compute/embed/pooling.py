"""Pooling of hidden states into one vector per text, by sentence-transformers' files."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx_server.compute.embed.files import modules_in, read_object
from omlx_server.errors import ModelUnavailable

_STEPS = ("Transformer", "Pooling", "Normalize")
_OLD_KEY = "pooling_mode_"
_OLD_NAMES = {"cls_token": "cls", "mean_tokens": "mean"}


class Mode(Enum):
    MEAN = "mean"
    CLS = "cls"
    LAST = "lasttoken"


@dataclass(frozen=True, slots=True)
class Pooling:
    mode: Mode
    normalise: bool

    def __call__(
        self, hidden: mx.array, lengths: mx.array, dimensions: int | None = None
    ) -> mx.array:
        """Return vectors float32 [B, D] from `hidden` [B, L, H]. `dimensions` cuts them before
        normalisation."""
        pooled = _POOL[self.mode](hidden, lengths).astype(mx.float32)[:, :dimensions]
        if not self.normalise:
            return pooled
        return pooled / mx.maximum(mx.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)


def read_pooling(directory: Path, default: Pooling) -> Pooling:
    """Return a model directory's pooling, or `default`. Raises ModelUnavailable."""
    modules = modules_in(directory)
    unknown = [module.kind for module in modules if module.kind not in _STEPS]
    if unknown:
        raise ModelUnavailable(f"modules.json: the step {unknown[0]!r} is not known")
    steps = {module.kind: module.path for module in modules}
    if "Pooling" not in steps:
        return default
    config = read_object(directory / steps["Pooling"] / "config.json")
    return Pooling(_mode(config), "Normalize" in steps)


def _mode(config: Mapping[str, Any]) -> Mode:
    chosen = config.get("pooling_mode")
    if chosen is None:
        flags = [key.removeprefix(_OLD_KEY) for key in config if key.startswith(_OLD_KEY)]
        chosen = [_OLD_NAMES.get(flag, flag) for flag in flags if config[_OLD_KEY + flag] is True]
    names = [chosen] if isinstance(chosen, str) else chosen
    modes = {mode.value: mode for mode in Mode}
    if not isinstance(names, list) or len(names) != 1 or names[0] not in modes:
        raise ModelUnavailable(f"the way of pooling is not known: {chosen!r}")
    return modes[names[0]]


def _mean(hidden: mx.array, lengths: mx.array) -> mx.array:
    live = mx.arange(hidden.shape[1]) < lengths[:, None]
    total = mx.sum(hidden.astype(mx.float32) * live[:, :, None], axis=1)
    return total / lengths[:, None]


def _first(hidden: mx.array, lengths: mx.array) -> mx.array:
    return hidden[:, 0]


def _last(hidden: mx.array, lengths: mx.array) -> mx.array:
    return hidden[mx.arange(hidden.shape[0]), lengths - 1]


_POOL = {Mode.MEAN: _mean, Mode.CLS: _first, Mode.LAST: _last}
