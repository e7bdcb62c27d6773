"""Encodes text so that it can't become control tokens. Immutable; any thread.

A clone of the tokenizer has a twin with an unguessable text for each control token. Invariant: a
control id in the output came from a twin, which only a template writes.
"""

import json
from collections.abc import Callable, Iterator

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from omlx_server.text.encoding import encoder, searching
from omlx_server.text.encoding.controls import ControlCuts, is_control, pattern_of, random_digits
from omlx_server.text.encoding.encoder import KeptIds, PieceEncoder
from omlx_server.text.encoding.pieces import byte_chars


class OrdinaryEncoder:
    """The encoder of one tokenizer. `texts`: the text of each control token by its id."""

    def __init__(self, backend: Backend, *, byte_level: bool, kept: KeptIds | None = None) -> None:
        controls = {
            token_id: token
            for token_id, token in backend.get_added_tokens_decoder().items()
            if is_control(token)
        }
        self.texts = {token_id: token.content for token_id, token in controls.items()}
        self._controls = pattern_of(self.texts.values())
        self._longest = max(map(len, self.texts.values()), default=0)
        clone = _without_controls(backend)
        mark = random_digits()
        twins = {token_id: f"{mark}{token_id:09d}" for token_id in controls}
        added = [_make_twin(backend, token, twins[i]) for i, token in controls.items()]
        clone.add_tokens(added)
        self._encoder = PieceEncoder(
            clone, cuts=ControlCuts(clone, added), kept=kept, translate=self._model_ids
        )
        vocabulary = clone.get_added_tokens_decoder()
        twin_ids = {token.content: twin_id for twin_id, token in vocabulary.items()}
        self._twin_of = {self.texts[token_id]: twin for token_id, twin in twins.items()}
        # The clone's ids that are others to the model: a twin is its control token. A control token
        # is spelled out: a unigram model whose vocabulary lists it can find it in plain text.
        self._ids_meant_by: dict[int, tuple[int, ...]] = {}
        for token_id, text in self.texts.items():
            self._ids_meant_by[twin_ids[twins[token_id]]] = (token_id,)
            self._ids_meant_by[token_id] = tuple(_spell_out(backend, text, byte_level))

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
        control tokens, what `restore` puts in does not. Raises as `encode`."""
        marked = searching.replace_all(
            self._controls, lambda match: self._twin_of[match[0]], rendering, reach=self._longest
        )
        return self._encoder.ids(restore(marked), most)

    def _model_ids(self, ids: list[int]) -> list[int]:
        if self._ids_meant_by.keys().isdisjoint(ids):
            return ids
        model_ids: list[int] = []
        for token_id in ids:
            model_ids.extend(self._ids_meant_by.get(token_id, (token_id,)))
        return model_ids


def _without_controls(backend: Backend) -> Backend:
    description = json.loads(backend.to_str())
    texts = {t.content for t in backend.get_added_tokens_decoder().values() if is_control(t)}
    for token in description["added_tokens"]:
        token["special"] = token["content"] in texts
    clone = Backend.from_str(json.dumps(description))
    encoder.bound(clone)
    clone.encode_special_tokens = True
    return clone


def _make_twin(backend: Backend, token: AddedToken, text: str) -> AddedToken:
    normalizer = backend.normalizer
    # A normalizer that puts something before every text would hide a normalized twin.
    is_stable = normalizer is None or normalizer.normalize_str(text) == text
    return AddedToken(
        text,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized and is_stable,
        special=False,
    )


def _spell_out(backend: Backend, text: str, byte_level: bool) -> Iterator[int]:
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
