"""From token events to answers: the choices of one generation, as any route wants them.

Token log-probabilities are held back as long as the text they belong to, so that joined tokens
are the content, also where a stop string cuts it.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from omlx_server.api.chat.finish import Finish
from omlx_server.api.metrics.metrics import Followed
from omlx_server.core.request import FinishReason, Logprobs, TokenEvent
from omlx_server.engine.client.generation import Generation
from omlx_server.errors import GrammarTooComplex
from omlx_server.text.answers.answer import Answer, TokenEntry, piece_entry, text_of, token_entry
from omlx_server.text.answers.form import Form
from omlx_server.text.parts import Part, merged
from omlx_server.text.tokenizer import Tokenizer

"""Why a choice ended."""


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
    """What one choice gained: parts of its answer, its tokens' log-probabilities, its end.
    `stopped`: the stop string that ended it."""

    index: int
    parts: tuple[Part, ...] = ()
    tokens: tuple[LoggedToken, ...] = ()
    finish: Finish | None = None
    stopped: str | None = None

    @property
    def text(self) -> str:
        return text_of(self.parts)


@dataclass(slots=True)
class Usage:
    """Token counts of a whole request. Completion tokens are summed over its choices; those of
    thoughts are among them. `dropped` messages are not part of the prompt."""

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    dropped: int = 0


@dataclass(slots=True)
class _Choice:
    answer: Answer
    pending: list[tuple[int, LoggedToken]] = field(default_factory=list)  # (first character, token)


class Choices:
    """Assembles the answer of every choice of one generation."""

    def __init__(
        self, generation: Generation, tokenizer: Tokenizer, form: Form, followed: Followed
    ) -> None:
        request = generation.request
        self.usage = Usage(len(request.tokens))
        self._generation = generation
        self._tokenizer = tokenizer
        self._followed = followed
        self._choices = [_Choice(Answer(tokenizer, form)) for _ in range(request.n)]

    async def deltas(self) -> AsyncIterator[ChoiceDelta]:
        """What comes, as it comes. Each choice's last delta has `finish`."""
        try:
            async for event in self._generation:
                delta = self._take(event)
                if delta.parts or delta.tokens or delta.finish:
                    yield delta
        except GrammarTooComplex:
            self._followed.too_complex()
            raise

    def _take(self, event: TokenEvent) -> ChoiceDelta:
        choice = self._choices[event.index]
        if self._generation.admission is not None and not self.usage.completion:
            self.usage.cached = self._generation.admission.cached
            self._followed.admitted(self._generation.admitted_at, self.usage.cached)
            self._followed.restored(self._generation.restored)
        parts: tuple[Part, ...] = ()
        if event.token is not None:
            self._followed.token(event.index)
            parts = self._add(choice, event.token, event.logprobs)
        answer, ends = choice.answer, event.finish is not None
        if ends and not answer.ended:
            parts = tuple(merged([*parts, *answer.finish()]))
        if answer.ended:
            ends = True
            self._generation.stop_choice(event.index)
        finish = _finish(answer, event.finish) if ends else None
        if finish:
            self._followed.finished(finish)
        tokens = _release(choice, ends=ends)
        return ChoiceDelta(event.index, parts, tokens, finish, answer.stopped if ends else None)

    def _add(self, choice: _Choice, token: int, logprobs: Logprobs | None) -> tuple[Part, ...]:
        answer, start = choice.answer, choice.answer.made
        thinking = answer.thinking
        delta = answer.add(token)
        # The marker that begins a thought counts as one, and so does the one that ends it.
        thinking = thinking or answer.thinking
        self.usage.completion += 1
        self.usage.reasoning += thinking
        if logprobs is not None and not thinking:
            choice.pending.append((start, logged(self._tokenizer, delta.piece, logprobs)))
        return delta.parts


def _finish(answer: Answer, reason: FinishReason | None) -> Finish:
    """A stop string and one call too many end an answer, whatever the engine says."""
    if reason is FinishReason.LENGTH and not answer.ended:
        return "length"
    return "tool_calls" if answer.calls and answer.stopped is None else "stop"


def _release(choice: _Choice, *, ends: bool) -> tuple[LoggedToken, ...]:
    """The tokens of what is shown; in the end those without a text, too."""
    answer = choice.answer
    shown = answer.made + 1 if ends and answer.stopped is None else answer.shown
    ready = [token for start, token in choice.pending if start < shown]
    choice.pending = choice.pending[len(ready) :]
    return tuple(ready)
