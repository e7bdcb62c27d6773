"""Encodes text so that it can't become control tokens. Immutable; any thread.

A clone of the tokenizer has a twin with an unguessable text for each control token. Invariant: a
control id in the output came from a twin, which only a template writes.
"""

import json
from collections.abc import Callable, Iterator

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from omlx_server.text.encoding import searching, word_cache
from omlx_server.text.encoding.control_cuts import ControlCuts
from omlx_server.text.encoding.controls import is_control, nonce, pattern_of
from omlx_server.text.encoding.encoder import PieceEncoder
from omlx_server.text.encoding.kept_ids import KeptIds
from omlx_server.text.encoding.pieces import byte_chars


class OrdinaryEncoder:
    def __init__(
        self,
        backend: Backend,
        *,
        byte_level: bool,
        kept: KeptIds | None = None,
    ) -> None:
        controls = {
            token_id: token
            for token_id, token in backend.get_added_tokens_decoder().items()
            if is_control(token)
        }
        self.texts = {token_id: token.content for token_id, token in controls.items()}
        self._pattern = pattern_of(self.texts.values())
        self._longest = max(map(len, self.texts.values()), default=0)
        clone = _without_controls(backend)
        mark = nonce()
        twins = {token_id: f"{mark}{token_id:09d}" for token_id in controls}
        added = [_twin(backend, token, twins[i]) for i, token in controls.items()]
        clone.add_tokens(added)
        self._encoder = PieceEncoder(
            clone, cuts=ControlCuts(clone, added), kept=kept, meaning=self._meant
        )
        vocabulary = clone.get_added_tokens_decoder()
        twin_ids = {token.content: twin_id for twin_id, token in vocabulary.items()}
        self._twin_of = {self.texts[token_id]: twin for token_id, twin in twins.items()}
        # What the clone's ids mean to the model. A unigram model can also yield a control token
        # from plain text, when its vocabulary lists it as a piece: that one is spelled out.
        self._written: dict[int, tuple[int, ...]] = {}
        for token_id, text in self.texts.items():
            self._written[twin_ids[twins[token_id]]] = (token_id,)
            self._written[token_id] = tuple(_spelled(backend, text, byte_level))

    def prepare(self) -> None:
        self._encoder.prepare()

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """Return token ids, none a control token. Raises TooManyTokens for more than `most`."""
        return self._encoder.ids(text, most)

    def beginning(self, text: str, count: int) -> list[int]:
        return self._encoder.beginning(text, count)[:count]

    def encode_rendered(
        self, rendering: str, restore: Callable[[str], str], most: int | None = None
    ) -> list[int]:
        """Return the token ids of a rendered template: control texts in `rendering` become
        control tokens, what `restore` puts in does not. Raises TooManyTokens for more than
        `most`."""
        marked = searching.replaced(
            self._pattern, lambda match: self._twin_of[match[0]], rendering, reach=self._longest
        )
        return self._encoder.ids(restore(marked), most)

    def _meant(self, ids: list[int]) -> list[int]:
        if self._written.keys().isdisjoint(ids):
            return ids
        found: list[int] = []
        for token_id in ids:
            found.extend(self._written.get(token_id, (token_id,)))
        return found


def _without_controls(backend: Backend) -> Backend:
    description = json.loads(backend.to_str())
    texts = {t.content for t in backend.get_added_tokens_decoder().values() if is_control(t)}
    for token in description["added_tokens"]:
        token["special"] = token["content"] in texts
    clone = Backend.from_str(json.dumps(description))
    word_cache.bound(clone)
    clone.encode_special_tokens = True
    return clone


def _twin(backend: Backend, token: AddedToken, text: str) -> AddedToken:
    """A normalizer that puts something before every text would hide a normalized twin."""
    normalizer = backend.normalizer
    stable = normalizer is None or normalizer.normalize_str(text) == text
    return AddedToken(
        text,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized and stable,
        special=False,
    )


def _spelled(backend: Backend, text: str, byte_level: bool) -> Iterator[int]:
    if byte_level:
        table = byte_chars()
        text = "".join(table[byte] for byte in text.encode())
    for char in text:
        char_id = backend.token_to_id(char)
        if char_id is not None:
            yield char_id
            continue
        byte_ids = [backend.token_to_id(f"<0x{byte:02X}>") for byte in char.encode()]
        yield from (byte_id for byte_id in byte_ids if byte_id is not None)
