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


def logged_token(tokenizer: Tokenizer, piece: Piece | None, logprobs: Logprobs) -> LoggedToken:
    top = tuple(token_entry(tokenizer, id, value) for id, value in logprobs.top)
    return LoggedToken(piece_entry(piece, logprobs.chosen), top)


@dataclass(slots=True)
class ChoiceDelta:
    """New parts of one choice. `stopped` is the stop string that ended it. Not frozen: faster."""

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
    """All deltas of one choice in one."""

    parts: list[Part] = field(default_factory=list)
    tokens: list[LoggedToken] = field(default_factory=list)
    finish: Finish = "stop"

    def add(self, delta: ChoiceDelta) -> None:
        self.parts += delta.parts
        self.tokens += delta.tokens
        self.finish = delta.finish or self.finish


@dataclass(slots=True)
class TokenCounts:
    """Token counts over all choices."""

    prompt: int
    completion: int = 0
    cached: int = 0  # of the prompt
    reasoning: int = 0  # of the completion
    dropped: int = 0  # messages
    accepted: int = 0  # drafted tokens
    rejected: int = 0  # drafted tokens


@dataclass(slots=True)
class _Choice:
    """The text of one choice so far, and the tokens that wait until their text may be shown."""

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
        self._metrics = metrics.follow(len(request.tokens))
        self._choices = [_Choice(AnswerParser(tokenizer, form)) for _ in range(request.n)]

    async def deltas(self) -> AsyncIterator[ChoiceDelta]:
        """Yield a delta for each choice and step; the last has `finish`. Raises what ends them."""
        generation = self.generation
        try:
            async for events in generation:
                if not self.usage.completion and (admission := generation.admitted):
                    self.usage.cached = admission.cached
                    moment, restored = generation.admitted_at, generation.restored
                    self._metrics.admitted(moment, admission, restored)
                for index, choice_events in _group_by_choice(events):
                    delta = self._take_events(index, choice_events)
                    if delta.parts or delta.tokens or delta.finish:
                        yield delta
        except GrammarTooComplex:
            self._metrics.too_complex()
            raise

    def headers(self) -> dict[str, str]:
        """Return those of CACHE_HEADERS that apply."""
        generation, headers = self.generation, dict[str, str]()
        if self.usage.dropped:
            headers["X-Omlx-Dropped-Messages"] = str(self.usage.dropped)
        if generation.longest_wait:
            headers["X-Omlx-Longest-Wait"] = str(math.ceil(generation.longest_wait))
        if admission := generation.admitted:
            headers["X-Omlx-Cached-Tokens"] = str(admission.cached)
            if admission.miss is not Miss.NONE:
                headers["X-Omlx-Cache-Miss"] = f"{admission.miss}; known-tokens={admission.known}"
        return headers

    def _take_events(self, index: int, events: Sequence[TokenEvent]) -> ChoiceDelta:
        """Return the delta of a choice for these events; tokens behind its end are dropped."""
        choice, tokens_before = self._choices[index], self.usage.completion
        answer, parts = choice.answer, list[Part]()
        reason: FinishReason | None = None
        ended = answer.ended
        for event in events:
            self.usage.rejected += event.rejected
            if ended:
                self.usage.rejected += event.accepted  # drafted in vain
                continue
            if event.token is not None:
                parts += self._add_token(choice, event.token, event)
                ended = answer.ended
            reason = event.finish
        if new_tokens := self.usage.completion - tokens_before:
            self._metrics.tokens(index, new_tokens)
        if reason is None and not ended:
            tokens = _release_tokens(choice) if choice.pending else ()
            return ChoiceDelta(index, _merge_parts(parts), tokens)
        if not ended:
            parts += answer.finish(cut=reason is FinishReason.LENGTH)
        if answer.ended:
            self.generation.stop_choice(index)
        finish = _finish_reason(answer, reason)
        self._metrics.finished(finish)
        tokens = _release_tokens(choice, ends=True)
        return ChoiceDelta(index, _merge_parts(parts), tokens, finish, answer.stopped)

    def _add_token(self, choice: _Choice, token: int, event: TokenEvent) -> tuple[Part, ...]:
        answer, usage = choice.answer, self.usage
        start, was_thinking = answer.made, answer.thinking
        delta = answer.add(token)
        # The markers that begin and end a thought count as tokens of the thought.
        thinking = was_thinking or answer.thinking
        usage.completion += 1
        usage.reasoning += thinking
        usage.accepted += event.accepted
        if event.logprobs is not None and not thinking:
            entry = logged_token(self._tokenizer, delta.piece, event.logprobs)
            choice.pending.append((start, entry))
        return delta.parts


def _group_by_choice(events: Sequence[TokenEvent]) -> Iterable[tuple[int, Sequence[TokenEvent]]]:
    if len(events) == 1:
        return ((events[0].index, events),)
    by_choice: dict[int, list[TokenEvent]] = {}
    for event in events:
        by_choice.setdefault(event.index, []).append(event)
    return by_choice.items()


def _merge_parts(parts: list[Part]) -> tuple[Part, ...]:
    return tuple(merged(parts)) if len(parts) > 1 else tuple(parts)


def _finish_reason(answer: AnswerParser, reason: FinishReason | None) -> Finish:
    """Return a choice's finish reason: a stop string, or one call too many, beats `reason`."""
    if reason is FinishReason.LENGTH and not answer.ended:
        return "length"
    return "tool_calls" if answer.calls and answer.stopped is None else "stop"


def _release_tokens(choice: _Choice, *, ends: bool = False) -> tuple[LoggedToken, ...]:
    """Take the pending tokens whose text may be shown."""
    if not choice.pending:
        return ()
    answer = choice.answer
    # The end shows all, also tokens without text, unless a stop string cut them off.
    shows_all = ends and answer.stopped is None
    shown_chars = answer.made + 1 if shows_all else answer.shown
    ready = [token for start, token in choice.pending if start < shown_chars]
    choice.pending = choice.pending[len(ready) :]
    return tuple(ready)
