"""What a vision tower computes of one image."""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """`embeddings` [N, hidden] take the places of an image's N tokens. Of Qwen3-VL `deepstack`
    [L, N, hidden] is added to the hidden states of these tokens behind each of the first L layers.
    """

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
        """All of its arrays, to be evaluated or stored."""
        return [self.embeddings] if self.deepstack is None else [self.embeddings, self.deepstack]

    def computed(self) -> "Features":
        """Itself, once its arrays are computed, so that nothing else is held of the work."""
        mx.eval(self.arrays)
        return self

    def cut(self, start: int, stop: int) -> "Features":
        """Those of the tokens from `start` to before `stop` of the image. Views."""
        deep = None if self.deepstack is None else self.deepstack[:, start:stop]
        return Features(self.embeddings[start:stop], deep)
