"""The input of an encoder: the token ids of one text, or of a query and a document."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """`ids` with special tokens. `types`: the text of each token (0 or 1); if empty, all are 0."""

    ids: tuple[int, ...]
    types: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)
