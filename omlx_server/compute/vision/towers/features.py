"""The output of a vision tower for one image."""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """The features of one image. `embeddings` [N, hidden] replace its N tokens. Qwen3-VL's
    `deepstack` [L, N, hidden] is added behind each of the first L layers."""

    embeddings: mx.array
    deepstack: mx.array | None = None

    @property
    def tokens(self) -> int:
        return self.embeddings.shape[0]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    @property
    def arrays(self) -> list[mx.array]:
        return [self.embeddings] if self.deepstack is None else [self.embeddings, self.deepstack]

    def computed(self) -> "Features":
        """Evaluate the arrays and return self."""
        mx.eval(self.arrays)
        return self

    def cut(self, start: int, stop: int) -> "Features":
        """Return views of the features of tokens [start, stop)."""
        deep = None if self.deepstack is None else self.deepstack[:, start:stop]
        return Features(self.embeddings[start:stop], deep)
