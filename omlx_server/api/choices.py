"""From token events to text: the choices of one generation, as any route wants them.

Token log-probabilities are held back as long as the text they belong to, so that joined tokens
are the content, also where a stop string cuts it.
"""

import codecs
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from omlx_server.api.metrics import Followed
from omlx_server.core.request import FinishReason, Logprobs, TokenEvent
from omlx_server.engine.client import Generation
from omlx_server.text.answer import Answer, Delta, TokenEntry, piece_entry, token_entry
from omlx_server.text.tokenizer import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class LoggedToken:
    """A token of the content and the likeliest alternatives, most likely first."""

    entry: TokenEntry
    top: tuple[TokenEntry, ...]


def logged(tokenizer: Tokenizer, piece: bytes, logprobs: Logprobs) -> LoggedToken:
    """A token of which `piece` is in the text."""
    top = tuple(token_entry(tokenizer, id, value) for id, value in logprobs.top)
    return LoggedToken(piece_entry(piece, logprobs.chosen), top)


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one choice gained: text, its tokens' log-probabilities, its end."""

    index: int
    text: str
    tokens: tuple[LoggedToken, ...] = ()
    finish: FinishReason | None = None


@dataclass(slots=True)
class Usage:
    """Token counts of a whole request. Completion tokens are summed over its choices."""

    prompt: int
    completion: int = 0
    cached: int = 0


@dataclass(slots=True)
class _Choice:
    answer: Answer
    pending: list[tuple[int, LoggedToken]] = field(default_factory=list)  # (first character, token)
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _utf8("replace"))
    made: int = 0  # whole characters of all tokens
    shown: int = 0  # characters of the text that was released


class Choices:
    """Assembles the text of every choice of one generation."""

    def __init__(
        self,
        generation: Generation,
        tokenizer: Tokenizer,
        stops: tuple[str, ...],
        include_stop: bool,
        followed: Followed,
        *,
        continues: bool = False,
    ) -> None:
        request = generation.request
        self.usage = Usage(len(request.tokens))
        self._generation = generation
        self._tokenizer = tokenizer
        self._followed = followed
        self._choices = [
            _Choice(Answer(tokenizer, stops, include_stop, continues=continues))
            for _ in range(request.n)
        ]

    async def deltas(self) -> AsyncIterator[ChoiceDelta]:
        """What comes, as it comes. Each choice's last delta has `finish`."""
        async for event in self._generation:
            delta = self._take(event)
            if delta.text or delta.tokens or delta.finish:
                yield delta

    def _take(self, event: TokenEvent) -> ChoiceDelta:
        choice = self._choices[event.index]
        if self._generation.admission is not None and not self.usage.completion:
            self.usage.cached = self._generation.admission.cached
            self._followed.admitted()
        text, finish = "", event.finish
        if event.token is not None:
            self.usage.completion += 1
            self._followed.token(event.index)
            delta = choice.answer.add(event.token)
            text = delta.text
            self._log(choice, delta, event.logprobs)
        if finish and choice.answer.stopped is None:
            text += choice.answer.finish()
        if choice.answer.stopped is not None:
            finish = FinishReason.STOP
            self._generation.stop_choice(event.index)
        if finish:
            self._followed.finished(finish.value)
        return ChoiceDelta(event.index, text, self._release(choice, text, finish), finish)

    def _log(self, choice: _Choice, delta: Delta, logprobs: Logprobs | None) -> None:
        start = choice.made
        choice.made += len(choice.decoder.decode(delta.piece))
        if logprobs is not None:
            choice.pending.append((start, logged(self._tokenizer, delta.piece, logprobs)))

    def _release(
        self, choice: _Choice, text: str, finish: FinishReason | None
    ) -> tuple[LoggedToken, ...]:
        choice.shown += len(text)
        if finish and choice.answer.stopped is None:
            choice.shown = choice.made + 1
        ready = [token for start, token in choice.pending if start < choice.shown]
        choice.pending = choice.pending[len(ready) :]
        return tuple(ready)
