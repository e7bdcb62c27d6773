"""Pools hidden states into one vector per text, by sentence-transformers' files, and shortens it
where a request asks for fewer dimensions."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx_server.compute.embed.files import modules_in, read_object
from omlx_server.errors import ModelUnavailable

_KNOWN_STEPS = ("Transformer", "Pooling", "Normalize")
# Older files have a flag for each mode: pooling_mode_cls_token, pooling_mode_mean_tokens.
_FLAG = "pooling_mode_"
_MODES_BY_FLAG = {"cls_token": "cls", "mean_tokens": "mean"}


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
        """Return vectors float32 [B, D] from `hidden` [B, L, H], shortened before they are
        normalised."""
        pooled = _POOL[self.mode](hidden, lengths).astype(mx.float32)
        vectors = shorten(pooled, dimensions)
        if not self.normalise:
            return vectors
        return vectors / mx.maximum(mx.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def shorten(vectors: mx.array, dimensions: int | None) -> mx.array:
    """Return the first `dimensions` numbers of each vector; all for None."""
    return vectors[:, :dimensions]


def read_pooling(directory: Path, default: Pooling) -> Pooling:
    """Return a model directory's pooling, or `default`. Raises ModelUnavailable."""
    modules = modules_in(directory)
    unknown = [module.kind for module in modules if module.kind not in _KNOWN_STEPS]
    if unknown:
        raise ModelUnavailable(f"modules.json: the step {unknown[0]!r} is not known")
    paths = {module.kind: module.path for module in modules}
    if "Pooling" not in paths:
        return default
    config = read_object(directory / paths["Pooling"] / "config.json")
    return Pooling(_mode_of(config), "Normalize" in paths)


def _mode_of(config: Mapping[str, Any]) -> Mode:
    chosen = config.get("pooling_mode")
    if chosen is None:
        flags = [key.removeprefix(_FLAG) for key in config if key.startswith(_FLAG)]
        chosen = [_MODES_BY_FLAG.get(flag, flag) for flag in flags if config[_FLAG + flag] is True]
    names = [chosen] if isinstance(chosen, str) else chosen
    modes = {mode.value: mode for mode in Mode}
    if not isinstance(names, list) or len(names) != 1 or names[0] not in modes:
        raise ModelUnavailable(f"the way of pooling is not known: {chosen!r}")
    return modes[names[0]]


def _mean_of_tokens(hidden: mx.array, lengths: mx.array) -> mx.array:
    is_token = mx.arange(hidden.shape[1]) < lengths[:, None]
    total = mx.sum(hidden.astype(mx.float32) * is_token[:, :, None], axis=1)
    return total / lengths[:, None]


def _first_token(hidden: mx.array, lengths: mx.array) -> mx.array:
    return hidden[:, 0]


def _last_token(hidden: mx.array, lengths: mx.array) -> mx.array:
    return hidden[mx.arange(hidden.shape[0]), lengths - 1]


_POOL = {Mode.MEAN: _mean_of_tokens, Mode.CLS: _first_token, Mode.LAST: _last_token}
