"""Typed metadata of a GGUF file. Read only; a missing or odd field raises ModelUnavailable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from omlx_server.errors import ModelUnavailable

K = TypeVar("K")
LAYOUT_HINT = "Use the same model in MLX layout, for example from mlx-community on Hugging Face."


def not_convertible(reason: str) -> ModelUnavailable:
    return ModelUnavailable(f"This GGUF file can't be converted: {reason}", hint=LAYOUT_HINT)


@dataclass(frozen=True, slots=True)
class GgufFields:
    """The metadata of a file: `key in fields`, and one getter per type."""

    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str:
        return self._of(key, "a text", str)

    def integer(self, key: str, default: int | None = None) -> int:
        if default is not None and key not in self:
            return default
        return self._of(key, "a whole number", int)

    def number(self, key: str) -> float:
        return float(self._of(key, "a number", int, float))

    def flag(self, key: str) -> bool:
        """False for a missing flag."""
        return key in self and bool(self._of(key, "a flag", object))

    def sequence(self, key: str) -> Sequence[Any]:
        return self._of(key, "a list", list)

    def _of(self, key: str, what: str, *kinds: type[K]) -> K:
        if key not in self.values:
            raise not_convertible(f"{key} is missing")
        value = self.values[key]
        if not isinstance(value, kinds):
            raise not_convertible(f"{key} is not {what}")
        return value
