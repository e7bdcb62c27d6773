"""The input of an encoder: the token ids of one text, or of a query and a document."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """`ids` hold the model's special tokens already. `types` says of each token to which text it
    belongs (0 or 1); empty `types` stand for 0 everywhere."""

    ids: tuple[int, ...]
    types: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)
