"""A GGUF file's metadata, typed. Read only; a missing or odd field is a ModelUnavailable."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gguf import GGUFReader

from omlx_server.errors import ModelUnavailable

LAYOUT_HINT = "Use the same model in MLX layout, for example from mlx-community on Hugging Face."


def not_convertible(reason: str) -> ModelUnavailable:
    return ModelUnavailable(f"This GGUF file can't be converted: {reason}", hint=LAYOUT_HINT)


@dataclass(frozen=True, slots=True)
class GgufFields:
    """`key in fields`, and one getter per type."""

    reader: GGUFReader

    def __contains__(self, key: str) -> bool:
        return key in self.reader.fields

    def text(self, key: str) -> str:
        value = self._value(key)
        if not isinstance(value, str):
            raise not_convertible(f"{key} is not a text")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if not isinstance(value, int):
            raise not_convertible(f"{key} is not a whole number")
        return value

    def number(self, key: str) -> float:
        value = self._value(key)
        if not isinstance(value, int | float):
            raise not_convertible(f"{key} is not a number")
        return float(value)

    def flag(self, key: str) -> bool:
        """A missing flag is a false one."""
        return key in self and bool(self._value(key))

    def sequence(self, key: str) -> Sequence[Any]:
        value = self._value(key)
        if not isinstance(value, list):
            raise not_convertible(f"{key} is not a list")
        return value

    def _value(self, key: str, default: int | None = None) -> object:
        field = self.reader.get_field(key)
        if field is None and default is None:
            raise not_convertible(f"{key} is missing")
        return default if field is None else field.contents()
