"""POST /v1/completions: continues texts. Each prompt becomes an engine request."""

import asyncio
import codecs
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.chat.choices import (
    CACHE_HEADERS,
    ChoiceDelta,
    Choices,
    LoggedToken,
    TokenCounts,
    WholeChoice,
    logged_token,
)
from omlx_server.api.chat.finish import Finish
from omlx_server.api.context import body_of, context_of, in_time
from omlx_server.api.description.operation import MODEL, WORK, Events, Operation
from omlx_server.api.http import sse
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.openai import answers, completion_prompts
from omlx_server.api.openai.completion_prompts import CompletionRequest, EncodedPrompt, start
from omlx_server.api.openai.shapes import finite, usage
from omlx_server.text.answers.answer import TokenEntry, piece_entry, text_of
from omlx_server.text.parts import Text

router = APIRouter()

_DESCRIBED = Operation(
    "Completions",
    answers.Completion,
    body=CompletionRequest,
    events=Events(answers.CompletionEvent, done=True),
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
).extra

# Prompts of one request in the engine at a time: a long list must not fill the shared queue.
_AT_ONCE = 16
# Items of merged streams that may wait for the reader, before the streams wait.
_MOST_QUEUED = 64
Item = TypeVar("Item")
_utf8 = codecs.getincrementaldecoder("utf-8")


@router.post("/v1/completions", openapi_extra=_DESCRIBED)
async def completions(request: Request) -> Response:
    """Continue one prompt or several, whole or as a stream of server-sent events."""
    context = context_of(request)
    body = await body_of(request, CompletionRequest)
    model = await context.models.find(body.model, adapter=body.adapter, preset=body.preset)
    body.check()
    encoding = context.threads.run(completion_prompts.encode, body, model)
    prompts = await in_time(request, encoding)
    answer = _CompletionAnswer(body, model, request, prompts)
    if body.stream:
        return sse.EventStream(answer.events(), context.keepalive_seconds, answer.headers)
    content = await while_connected(request.receive, answer.whole())
    return JsonResponse(content, headers=answer.headers())


@dataclass(slots=True)
class _TextLogprobs:
    """Makes the log-probabilities of one text in OpenAI's older form, over all calls of `shape`."""

    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _utf8("replace"))
    _offset: int = 0

    def shape(self, tokens: Sequence[LoggedToken]) -> answers.TextLogprobs:
        entries = [token.entry for token in tokens]
        return {
            "tokens": [entry.text for entry in entries],
            "token_logprobs": [finite(entry.logprob) for entry in entries],
            "top_logprobs": [_logprobs_by_text(token.entry, token.top) for token in tokens],
            "text_offset": [self._offset_of(bytes(entry.bytes)) for entry in entries],
        }

    def _offset_of(self, piece: bytes) -> int:
        """Return how many characters of the text stand before a token."""
        # `added` may begin with the end of an earlier token's character, or with one character for
        # earlier bytes that turn out not to be UTF-8: the token's own come after it.
        added = self._decoder.decode(piece)
        own_characters = min(len(added), len(piece.decode(errors="ignore"))) or len(added)
        self._offset += len(added)
        return self._offset - own_characters


class _CompletionAnswer:
    """Makes one response. Closing the iterator of `events` closes its generations."""

    def __init__(
        self,
        body: CompletionRequest,
        model: ServedModel,
        request: Request,
        prompts: list[EncodedPrompt],
    ) -> None:
        self._body = body
        self._model = model
        self._request = request
        self._prompts = prompts
        self._id = f"cmpl-{uuid.uuid4().hex}"
        # The fields of each chunk, without choices. Usage is null where the last chunk has it.
        self._chunk: answers.CompletionChunk = {
            "id": self._id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": model.system_fingerprint,
            "choices": [],
        }
        if body.with_usage:
            self._chunk["usage"] = None
        self._usage = TokenCounts(sum(len(prompt.tokens) for prompt in prompts))
        self._single_choices: Choices | None = None  # of a request with one prompt

    def headers(self) -> dict[str, str]:
        return self._single_choices.headers() if self._single_choices else {}

    async def whole(self) -> answers.Completion:
        choices = [WholeChoice() for _ in range(len(self._prompts) * self._body.candidates)]
        async for delta in self._all_deltas():
            choices[delta.index].add(delta)
        best: list[WholeChoice] = []
        size = self._body.candidates
        for first in range(0, len(choices), size):
            best += _likeliest(choices[first : first + size], self._body.answers)
        shapes = [self._choice(index, choice) for index, choice in enumerate(best)]
        return {**self._chunk, "choices": shapes, "usage": usage(self._usage)}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the response as events, with token counts last if asked for."""
        logs = [_TextLogprobs() for _ in range(len(self._prompts) * self._body.candidates)]
        async for delta in self._all_deltas():
            piece = self._text_piece(delta.index, delta.text, logs[delta.index], delta.tokens)
            finish = _text_finish(delta.finish) if delta.finish else None
            choice: answers.CompletionChunkChoice = {**piece, "finish_reason": finish}
            yield sse.event({**self._chunk, "choices": [choice]})
        if self._body.with_usage:
            yield sse.event({**self._chunk, "usage": usage(self._usage)})
        yield sse.DONE

    def _choice(self, index: int, choice: WholeChoice) -> answers.CompletionChoice:
        piece = self._text_piece(index, text_of(choice.parts), _TextLogprobs(), choice.tokens)
        return {**piece, "finish_reason": _text_finish(choice.finish)}

    def _text_piece(
        self, index: int, text: str, log: _TextLogprobs, tokens: Sequence[LoggedToken]
    ) -> answers.TextPiece:
        logprobs = None if self._body.logprobs is None else log.shape(tokens)
        return {"index": index, "text": text, "logprobs": logprobs}

    def _all_deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        streams = [self._deltas_of_prompt(number) for number in range(len(self._prompts))]
        return merge_streams(streams, _AT_ONCE)

    async def _deltas_of_prompt(self, number: int) -> AsyncGenerator[ChoiceDelta, None]:
        """Yield the deltas of one prompt; indices count over all prompts."""
        prompt, first_index = self._prompts[number], number * self._body.candidates
        # Without an answer the echoed prompt is all.
        finish: Finish | None = "length" if prompt.max_tokens == 0 else None
        if self._body.echo:
            tokens = await self._echoed_tokens(prompt)
            for index in range(self._body.candidates):
                yield ChoiceDelta(first_index + index, (Text(prompt.text),), tokens, finish)
        if finish:
            return
        id = f"{self._id}-{number}"
        choices = await start(id, prompt, self._body, self._model, self._request)
        self._single_choices = choices if len(self._prompts) == 1 else None
        async with choices.generation:
            async for delta in choices.deltas():
                yield replace(delta, index=first_index + delta.index)
            self._usage.completion += choices.usage.completion
            self._usage.accepted += choices.usage.accepted
            self._usage.rejected += choices.usage.rejected
            self._usage.cached += choices.usage.cached

    async def _echoed_tokens(self, prompt: EncodedPrompt) -> tuple[LoggedToken, ...]:
        """Return the prompt's tokens with log-probabilities, or none unless asked for."""
        if self._body.logprobs is None:
            return ()
        tokenizer = self._model.tokenizer
        scores = await self._model.engine.score(
            prompt.tokens, self._body.logprobs, self._model.adapter
        )
        # The first token has no log-probability.
        first, *others = [tokenizer.token_bytes(token) for token in prompt.tokens]
        scored = [
            logged_token(tokenizer, piece, logprobs)
            for piece, logprobs in zip(others, scores, strict=True)
        ]
        return (LoggedToken(piece_entry(first, None), ()), *scored)


def _logprobs_by_text(chosen: TokenEntry, top: Sequence[TokenEntry]) -> dict[str, float] | None:
    """Return log-probabilities by token text, the likeliest of those with the same text."""
    if chosen.logprob is None:
        return None
    logprobs: dict[str, float] = {}
    for entry in (*top, chosen):
        logprobs.setdefault(entry.text, finite(entry.logprob) or 0.0)
    return logprobs


def _mean_logprob(choice: WholeChoice) -> float:
    logprobs = [token.entry.logprob for token in choice.tokens if token.entry.logprob is not None]
    return fmean(logprobs) if logprobs else 0.0


def _text_finish(finish: Finish) -> answers.TextFinish:
    return "length" if finish == "length" else "stop"


def _likeliest(group: list[WholeChoice], count: int) -> list[WholeChoice]:
    """Return the `count` likeliest choices, the likeliest first."""
    if len(group) == count:
        return group
    return sorted(group, key=_mean_logprob, reverse=True)[:count]


async def merge_streams(
    streams: Sequence[AsyncIterator[Item]], at_once: int
) -> AsyncGenerator[Item, None]:
    """Yield the items of all streams, `at_once` of which run. The first error ends them all."""
    # Unbounded, so that the closing None never waits; `queue_slots` bounds the items.
    items: asyncio.Queue[Item | None] = asyncio.Queue()
    run_slots, queue_slots = asyncio.Semaphore(at_once), asyncio.Semaphore(_MOST_QUEUED)

    async def drain(stream: AsyncIterator[Item]) -> None:
        async with run_slots:
            async for item in stream:
                await queue_slots.acquire()
                items.put_nowait(item)

    async def drain_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for stream in streams:
                    group.create_task(drain(stream))
        finally:
            items.put_nowait(None)

    work = asyncio.create_task(drain_all())
    try:
        while (item := await items.get()) is not None:
            queue_slots.release()
            yield item
        try:
            await work
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
    finally:
        work.cancel()
        await asyncio.wait({work})
