"""Makes the inputs of embedding and reranking models. Any thread. The text of a special token is
ordinary text."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from omlx_server.core.crash import Crash, guarded
from omlx_server.core.encoded import TokenizedText
from omlx_server.errors import ModelUnavailable, PromptTooLong, TooManyTokens
from omlx_server.text.encoding.encoder import bound
from omlx_server.text.encoding.ordinary import OrdinaryEncoder
from omlx_server.text.encoding.pieces import Pieces
from omlx_server.text.encoding.searching import without_surrogates

_PROBE = "a"
_MOST_TOKENS = 1 << 20
"""Of a text that is cut afterwards: a longer one is not encoded."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Special tokens around texts: `gaps[i]`, as (ids, types), is before text i, the last one is
    the end. `types` are those of the texts."""

    gaps: tuple[TokenizedText, ...]
    types: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.gaps))

    def put_around(self, *texts: list[int]) -> TokenizedText:
        ids = list(self.gaps[0].ids)
        types = list(self.gaps[0].types)
        for text, type_id, gap in zip(texts, self.types, self.gaps[1:], strict=True):
            ids += [*text, *gap.ids]
            types += [*[type_id] * len(text), *gap.types]
        return TokenizedText(tuple(ids), tuple(types))


class InputEncoder:
    """Makes the inputs of one model."""

    def __init__(self, backend: Backend) -> None:
        description = json.loads(backend.to_str())
        unknown = _unknown_word(description["model"])
        own_backend = _with_unknown_as_text(unknown, description)
        own_backend.no_truncation()
        own_backend.no_padding()
        self._backend = own_backend
        self._ordinary = OrdinaryEncoder(own_backend, byte_level=Pieces(own_backend).byte_level)
        self._single = _frame_of(own_backend.encode(_PROBE))
        self._pair = _frame_of(own_backend.encode(_PROBE, _PROBE))
        around = {id for gap in self._single.gaps for id in gap.ids}
        unknown_id = backend.token_to_id(unknown) if unknown else None
        self._wordless_ids = around if unknown_id is None else around | {unknown_id}

    @classmethod
    def load(cls, directory: Path) -> "InputEncoder":
        path = directory / "tokenizer.json"
        try:
            description = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"{path} can't be read: {error}") from error
        # The library raises plain Exception for a description that it can't use.
        backend = guarded(Backend.from_str, description)
        if isinstance(backend, Crash):
            raise ModelUnavailable(f"{path} is no tokenizer: {backend.error}")
        bound(backend)
        encoder = cls(backend)
        encoder.prepare()
        return encoder

    def prepare(self) -> None:
        """Make what long texts need. For the thread that loads the model."""
        self._ordinary.prepare()

    def encode(self, text: str, limit: int) -> TokenizedText:
        """Return the input of one text, cut to `limit` tokens."""
        room = max(0, limit - self._single.size)
        return self._single.put_around(self._ordinary.beginning(without_surrogates(text), room))

    def encode_whole(self, text: str, most: int) -> TokenizedText:
        """Raises TooManyTokens for more than `most` tokens."""
        encoded = self._single.put_around(self._encode_ordinary(text, most))
        if len(encoded) > most:
            raise TooManyTokens(most, len(encoded))
        return encoded

    def is_own(self, ids: Sequence[int]) -> bool:
        """Guess whether these are tokens of this model by decoding and encoding them."""
        ordinary = [id for id in ids if id not in self._wordless_ids]
        text = self._backend.decode(ordinary, skip_special_tokens=False)
        try:
            again = self._encode_ordinary(text, 4 * len(ordinary) + 1)
        except PromptTooLong:
            return False
        shared = (Counter(ordinary) & Counter(again)).total()
        return 2 * shared >= max(len(ordinary), len(again))

    def encode_pairs(self, query: str, documents: Sequence[str], limit: int) -> list[TokenizedText]:
        """Return the inputs of `query` with each document, cut to `limit` tokens: first the
        longer text to the length of the other, then both."""
        query_ids = self._encode_ordinary(query, _MOST_TOKENS)
        room, pairs = max(0, limit - self._pair.size), list[TokenizedText]()
        for document in documents:
            ids = self._encode_ordinary(document, _MOST_TOKENS)
            of_query, of_document = _lengths_kept(len(query_ids), len(ids), room)
            pairs.append(self._pair.put_around(query_ids[:of_query], ids[:of_document]))
        return pairs

    def _encode_ordinary(self, text: str, most: int) -> list[int]:
        return self._ordinary.encode(without_surrogates(text), most)


def _lengths_kept(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts are kept, as transformers' `longest_first` has it."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)


def _frame_of(probe: Encoding) -> _Frame:
    """Read the frame from an encoding, which tells the text of each token, None for special."""
    count = 1 + max(text for text in probe.sequence_ids if text is not None)
    ids: list[list[int]] = [[] for _ in range(count + 1)]
    types: list[list[int]] = [[] for _ in range(count + 1)]
    text_types = [0] * count
    gap = 0
    for token_id, type_id, text in zip(probe.ids, probe.type_ids, probe.sequence_ids, strict=True):
        if text is None:
            ids[gap].append(token_id)
            types[gap].append(type_id)
        else:
            gap, text_types[text] = text + 1, type_id
    gaps = tuple(TokenizedText(tuple(i), tuple(t)) for i, t in zip(ids, types, strict=True))
    return _Frame(gaps, tuple(text_types))


def _unknown_word(model: Mapping[str, Any]) -> str | None:
    if model["type"] == "Unigram" and model["unk_id"] is not None:
        return str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def _with_unknown_as_text(unknown: str | None, description: dict[str, Any]) -> Backend:
    """Return a tokenizer that takes the unknown token as an ordinary one: some texts are full of
    it."""
    added = description["added_tokens"]
    description["added_tokens"] = [token for token in added if token["content"] != unknown]
    copy = Backend.from_str(json.dumps(description))
    bound(copy)
    return copy
