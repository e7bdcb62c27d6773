"""The input of an encoder: the token ids of one text, or of a query and a document."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """`ids` include the special tokens. `types` gives each token's text (0 or 1); empty means
    all 0."""

    ids: tuple[int, ...]
    types: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)
