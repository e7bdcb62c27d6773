"""Turn the token events of one generation into the deltas of its choices.

A log-probability waits as long as its text: the tokens that a client gets, joined, are its content.
"""

import math
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from omlx_server.api.chat.finish import Finish
from omlx_server.api.description.operation import ResponseHeader
from omlx_server.api.metrics.metrics import ModelMetrics
from omlx_server.core.request import FinishReason, Logprobs, Miss, TokenEvent
from omlx_server.engine.client.generation import Generation
from omlx_server.errors import GrammarTooComplex
from omlx_server.text.answers.answer import (
    AnswerParser,
    TokenEntry,
    piece_entry,
    text_of,
    token_entry,
)
from omlx_server.text.answers.form import AnswerForm
from omlx_server.text.encoding.pieces import Piece
from omlx_server.text.parts import Part, Text, merged
from omlx_server.text.tokenizer import Tokenizer

CACHE_HEADERS = (
    ResponseHeader("X-Omlx-Cached-Tokens", "Tokens of the prompt that were in the cache."),
    ResponseHeader(
        "X-Omlx-Cache-Miss", "Why not all of it was there, and how much is known of it."
    ),
    ResponseHeader(
        "X-Omlx-Dropped-Messages", "So many were left out: the conversation is too long."
    ),
    ResponseHeader("X-Omlx-Warnings", "What of the request could not be done."),
    ResponseHeader("X-Omlx-Longest-Wait", "Seconds until the first token, by the work before it."),
)
"""The headers that an answer of a model can have."""


@dataclass(frozen=True, slots=True)
class LoggedToken:
    """A token of the content with its log-probability, and the likeliest alternatives."""

    entry: TokenEntry
    top: tuple[TokenEntry, ...]


def logged(tokenizer: Tokenizer, piece: Piece | None, logprobs: Logprobs) -> LoggedToken:
    top = tuple(token_entry(tokenizer, id, value) for id, value in logprobs.top)
    return LoggedToken(piece_entry(piece, logprobs.chosen), top)


@dataclass(slots=True)
class ChoiceDelta:
    """New parts of one choice. `stopped` is the stop string that ended it. Not frozen, for
    speed."""

    index: int
    parts: tuple[Part, ...] = ()
    tokens: tuple[LoggedToken, ...] = ()
    finish: Finish | None = None
    stopped: str | None = None

    @property
    def text(self) -> str:
        return text_of(self.parts)

    @property
    def only_text(self) -> str | None:
        """The text where the choice gained nothing else."""
        if len(self.parts) != 1 or self.tokens or self.finish:
            return None
        [part] = self.parts
        return part.text if type(part) is Text else None


@dataclass(slots=True)
class WholeChoice:
    parts: list[Part] = field(default_factory=list)
    tokens: list[LoggedToken] = field(default_factory=list)
    finish: Finish = "stop"

    def add(self, delta: ChoiceDelta) -> None:
        self.parts += delta.parts
        self.tokens += delta.tokens
        self.finish = delta.finish or self.finish


@dataclass(slots=True)
class TokenCounts:
    """Token counts over all choices. `cached` is part of `prompt`, `reasoning` of `completion`;
    `dropped` counts messages, `accepted` and `rejected` drafted tokens."""

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    dropped: int = 0
    accepted: int = 0
    rejected: int = 0


@dataclass(slots=True)
class _Choice:
    answer: AnswerParser
    pending: list[tuple[int, LoggedToken]] = field(default_factory=list)  # (first character, token)


class Choices:
    """The choices of one `generation`, which its user closes."""

    def __init__(
        self, generation: Generation, tokenizer: Tokenizer, form: AnswerForm, metrics: ModelMetrics
    ) -> None:
        request = generation.request
        self.generation = generation
        self.usage = TokenCounts(len(request.tokens))
        self._tokenizer = tokenizer
        self._followed = metrics.follow(len(request.tokens))
        self._choices = [_Choice(AnswerParser(tokenizer, form)) for _ in range(request.n)]

    async def deltas(self) -> AsyncIterator[ChoiceDelta]:
        """Yield one delta for each choice and step; the last has `finish`. Raises the request's
        error."""
        generation = self.generation
        try:
            async for events in generation:
                if not self.usage.completion and (admission := generation.admitted):
                    self.usage.cached = admission.cached
                    moment, restored = generation.admitted_at, generation.restored
                    self._followed.admitted(moment, admission, restored)
                for index, of_choice in _by_choice(events):
                    delta = self._take(index, of_choice)
                    if delta.parts or delta.tokens or delta.finish:
                        yield delta
        except GrammarTooComplex:
            self._followed.too_complex()
            raise

    def headers(self) -> dict[str, str]:
        generation, dropped = self.generation, self.usage.dropped
        headers = {"X-Omlx-Dropped-Messages": str(dropped)} if dropped else {}
        if generation.longest_wait:
            headers["X-Omlx-Longest-Wait"] = str(math.ceil(generation.longest_wait))
        if admission := generation.admitted:
            headers["X-Omlx-Cached-Tokens"] = str(admission.cached)
            if admission.miss is not Miss.NONE:
                headers["X-Omlx-Cache-Miss"] = f"{admission.miss}; known-tokens={admission.known}"
        return headers

    def _take(self, index: int, events: Sequence[TokenEvent]) -> ChoiceDelta:
        """Return the delta of a choice for these events; tokens behind its end are dropped."""
        choice, before = self._choices[index], self.usage.completion
        answer, parts, reason = choice.answer, list[Part](), None
        ended = answer.ended
        for event in events:
            self.usage.rejected += event.rejected
            if ended:
                self.usage.rejected += event.accepted  # drafted in vain
                continue
            if event.token is not None:
                parts += self._add(choice, event.token, event)
                ended = answer.ended
            reason = event.finish
        if count := self.usage.completion - before:
            self._followed.tokens(index, count)
        if reason is None and not ended:
            return ChoiceDelta(index, _joined(parts), _release(choice) if choice.pending else ())
        if not ended:
            parts += answer.finish(cut=reason is FinishReason.LENGTH)
        if answer.ended:
            self.generation.stop_choice(index)
        return self._end(index, _joined(parts), reason)

    def _end(self, index: int, parts: tuple[Part, ...], reason: FinishReason | None) -> ChoiceDelta:
        choice = self._choices[index]
        finish = _finish(choice.answer, reason)
        self._followed.finished(finish)
        tokens = _release(choice, ends=True)
        return ChoiceDelta(index, parts, tokens, finish, choice.answer.stopped)

    def _add(self, choice: _Choice, token: int, event: TokenEvent) -> tuple[Part, ...]:
        answer, usage = choice.answer, self.usage
        start, thinking = answer.made, answer.thinking
        delta = answer.add(token)
        # The markers that begin and end a thought count as tokens of the thought.
        thinking = thinking or answer.thinking
        usage.completion += 1
        usage.reasoning += thinking
        usage.accepted += event.accepted
        if event.logprobs is not None and not thinking:
            entry = logged(self._tokenizer, delta.piece, event.logprobs)
            choice.pending.append((start, entry))
        return delta.parts


def _by_choice(events: Sequence[TokenEvent]) -> Iterable[tuple[int, Sequence[TokenEvent]]]:
    if len(events) == 1:
        return ((events[0].index, events),)
    by_choice: dict[int, list[TokenEvent]] = {}
    for event in events:
        by_choice.setdefault(event.index, []).append(event)
    return by_choice.items()


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    return tuple(merged(parts)) if len(parts) > 1 else tuple(parts)


def _finish(answer: AnswerParser, reason: FinishReason | None) -> Finish:
    """Return a choice's finish reason: a stop string, or one call too many, beats `reason`."""
    if reason is FinishReason.LENGTH and not answer.ended:
        return "length"
    return "tool_calls" if answer.calls and answer.stopped is None else "stop"


def _release(choice: _Choice, *, ends: bool = False) -> tuple[LoggedToken, ...]:
    """Take the pending tokens whose text may be shown; at the end also those without text, unless a
    stop string cut them off."""
    if not choice.pending:
        return ()
    answer = choice.answer
    shown = answer.made + 1 if ends and answer.stopped is None else answer.shown
    ready = [token for start, token in choice.pending if start < shown]
    choice.pending = choice.pending[len(ready) :]
    return tuple(ready)
