"""A GGUF file's fields below its architecture's name, and the tensors that a config depends on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from omlx_server.core.gguf.head import GgufHead

Config = dict[str, Any]
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
Factors = Mapping[str, Sequence[float]]  # values of the tensors in FACTORS that a file has


class Fields:
    """Raises ValueError for a field that lacks."""

    def __init__(self, head: GgufHead, factors: Factors) -> None:
        self.architecture = str(head.fields.get("general.architecture"))
        self._fields = head.fields
        self._tensors = {tensor.name for tensor in head.tensors}
        self._factors = factors
        self.vocabulary = len(head.fields.get("tokenizer.ggml.tokens", ()))

    def __call__(self, name: str, default: Any = None) -> Any:
        value = self._fields.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise ValueError(f"it has no {self.architecture}.{name}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        return shortest(self(name, default))

    def size(self, name: str, default: int | None = None) -> int:
        """Return a number above 0; of a list, which has one for each layer, the largest."""
        value = self(name, default)
        most = max(value, default=0) if isinstance(value, list) else value
        if type(most) is not int or most <= 0:
            raise ValueError(f"its {self.architecture}.{name} is {str(value)[:80]}")
        return most

    def factors(self, name: str) -> Sequence[float]:
        return self._factors.get(name, ())

    def has(self, tensor: str) -> bool:
        return tensor in self._tensors

    def has_field(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self._fields


def shortest(value: float) -> float:
    """Return the shortest decimal of the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}") if math.isfinite(value) else value
