"""What an embedding or reranking model reads: the ids of one text, or of a query and a document."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Encoded:
    """Whole: the model's special tokens are in it. `types` says of each token which text it is of
    (0 or 1); empty stands for all 0."""

    ids: tuple[int, ...]
    types: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)
