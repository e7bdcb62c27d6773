"""The JSON of text completions, whole and in chunks, as the openai package's types want it."""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from omlx_server.api.chat.choices import LoggedToken, Usage
from omlx_server.api.openai import answers
from omlx_server.api.openai.shapes import finite, usage
from omlx_server.text.answers.answer import TokenEntry

_utf8 = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True)
class TextLogprobs:
    """Log-probabilities of one text in OpenAI's older form, token by token. Offsets count the
    characters before a token, over all that was added so far."""

    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _utf8("replace"))
    _offset: int = 0

    def shape(self, tokens: Iterable[LoggedToken]) -> answers.TextLogprobs:
        shape: answers.TextLogprobs = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token in tokens:
            entry = token.entry
            shape["tokens"].append(entry.text)
            shape["token_logprobs"].append(finite(entry.logprob))
            shape["top_logprobs"].append(_by_text(entry, token.top))
            shape["text_offset"].append(self._place(bytes(entry.bytes)))
        return shape

    def _place(self, piece: bytes) -> int:
        """Where a token's own characters begin. Bytes before it that turn out to be none at all
        are one character more."""
        added = self._decoder.decode(piece)
        own = min(len(added), len(piece.decode(errors="ignore")))
        self._offset += len(added)
        return self._offset - (own or len(added))


def _by_text(chosen: TokenEntry, top: Sequence[TokenEntry]) -> dict[str, float] | None:
    """The chosen token is always there. Of tokens with one text the likeliest counts."""
    if chosen.logprob is None:
        return None
    texts: dict[str, float] = {}
    for entry in (*top, chosen):
        texts.setdefault(entry.text, finite(entry.logprob) or 0.0)
    return texts


class CompletionShapes:
    """The parts that all chunks of one response share. `fingerprint` names what computes it. Usage
    in a last chunk, if it is wanted there."""

    def __init__(
        self, id: str, created: int, model: str, fingerprint: str, *, with_usage: bool
    ) -> None:
        self._empty: answers.CompletionChunk = {
            "id": id,
            "object": "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
            "choices": [],
        }
        if with_usage:
            self._empty["usage"] = None

    def completion(
        self, choices: list[answers.CompletionChoice], counts: Usage
    ) -> answers.Completion:
        return {**self._empty, "choices": choices, "usage": usage(counts)}

    def chunk(self, choice: answers.CompletionChunkChoice) -> answers.CompletionChunk:
        return {**self._empty, "choices": [choice]}

    def last(self, counts: Usage) -> answers.CompletionChunk:
        """The chunk after all others, with the usage."""
        return {**self._empty, "usage": usage(counts)}
