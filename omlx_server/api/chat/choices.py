"""Turns the token events of one generation into the deltas of its choices, for the routes.

A token's log-probability is held back as long as the text that it belongs to. So the tokens that a
client gets, joined, are the content that it gets, also where a stop string cuts the answer.
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
    """A token of the content with its log-probability, and in `top` the likeliest alternatives, the
    most likely first."""

    entry: TokenEntry
    top: tuple[TokenEntry, ...]


def logged(tokenizer: Tokenizer, piece: Piece | None, logprobs: Logprobs) -> LoggedToken:
    """The LoggedToken of a chosen token; `piece` is what it gave to the text."""
    top = tuple(token_entry(tokenizer, id, value) for id, value in logprobs.top)
    return LoggedToken(piece_entry(piece, logprobs.chosen), top)


@dataclass(slots=True)
class ChoiceDelta:
    """What one choice gained: `parts` of its answer, `tokens` with their log-probabilities where
    those were asked for, and `finish` with its last delta. `stopped`: the stop string that ended
    it, if one did. Nothing changes it. There is one for each token, and a frozen one takes more
    than twice as long to make."""

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
        """The text, where the choice has gained nothing else."""
        if len(self.parts) != 1 or self.tokens or self.finish:
            return None
        [part] = self.parts
        return part.text if type(part) is Text else None


@dataclass(slots=True)
class WholeChoice:
    """A whole choice, put together from its deltas."""

    parts: list[Part] = field(default_factory=list)
    tokens: list[LoggedToken] = field(default_factory=list)
    finish: Finish = "stop"

    def add(self, delta: ChoiceDelta) -> None:
        self.parts += delta.parts
        self.tokens += delta.tokens
        self.finish = delta.finish or self.finish


@dataclass(slots=True)
class TokenCounts:
    """Token counts of a whole request. `completion` is the sum over its choices, `reasoning` the
    part of it that was spent on thoughts; `cached` is the part of `prompt` that the prefix cache
    had. `dropped` counts the messages that were left out of the prompt. Of the tokens that were
    drafted `accepted` are in the answer, and `rejected` were wrong."""

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
    """Assembles the answer of every choice of one `generation`. Its user closes the generation."""

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
        """The deltas of all choices as they come: one for all that a step gave to a choice. Each
        choice's last delta has `finish`. Raises the error that ended the request, if one did."""
        try:
            async for events in self.generation:
                if not self.usage.completion:
                    self._note_admission()
                for index, own in _by_choice(events):
                    delta = self._take(index, own)
                    if delta.parts or delta.tokens or delta.finish:
                        yield delta
        except GrammarTooComplex:
            self._followed.too_complex()
            raise

    def headers(self) -> dict[str, str]:
        """Response headers: how much of the prompt the prefix cache had (once the request is
        admitted), how many messages were dropped, and the most seconds until the first token."""
        generation, dropped = self.generation, self.usage.dropped
        headers = {"X-Omlx-Dropped-Messages": str(dropped)} if dropped else {}
        if generation.longest_wait:
            headers["X-Omlx-Longest-Wait"] = str(math.ceil(generation.longest_wait))
        if found := generation.admitted:
            headers["X-Omlx-Cached-Tokens"] = str(found.cached)
            if found.miss is not Miss.NONE:
                headers["X-Omlx-Cache-Miss"] = f"{found.miss}; known-tokens={found.known}"
        return headers

    def _note_admission(self) -> None:
        generation = self.generation
        if found := generation.admitted:
            self.usage.cached = found.cached
            self._followed.admitted(generation.admitted_at, found, generation.restored)

    def _take(self, index: int, events: Sequence[TokenEvent]) -> ChoiceDelta:
        """The delta of a choice that has these events. What comes behind its end is dropped."""
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
        """The last delta of a choice."""
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
    """The events of each choice by its index, in the order in which choices have the first."""
    if len(events) == 1:
        return ((events[0].index, events),)
    found: dict[int, list[TokenEvent]] = {}
    for event in events:
        found.setdefault(event.index, []).append(event)
    return found.items()


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    return tuple(merged(parts)) if len(parts) > 1 else tuple(parts)


def _finish(answer: AnswerParser, reason: FinishReason | None) -> Finish:
    """The finish reason of an ended choice. A stop string, or one call more than allowed, goes
    before the engine's own `reason`."""
    if reason is FinishReason.LENGTH and not answer.ended:
        return "length"
    return "tool_calls" if answer.calls and answer.stopped is None else "stop"


def _release(choice: _Choice, *, ends: bool = False) -> tuple[LoggedToken, ...]:
    """The pending tokens whose text may be shown now; when the choice `ends`, those without a text
    as well, unless a stop string cut them off."""
    if not choice.pending:
        return ()
    answer = choice.answer
    shown = answer.made + 1 if ends and answer.stopped is None else answer.shown
    ready = [token for start, token in choice.pending if start < shown]
    choice.pending = choice.pending[len(ready) :]
    return tuple(ready)
