"""POST /v1/completions: continues texts. Each prompt becomes an engine request."""

import asyncio
import codecs
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
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
    logged,
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
_ROOM = 64
A = TypeVar("A")
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
    answer = _Answer(body, model, request, prompts)
    if body.stream:
        return sse.EventStream(answer.events(), context.keepalive_seconds, answer.headers)
    content = await while_connected(request.receive, answer.whole())
    return JsonResponse(content, headers=answer.headers())


@dataclass(slots=True)
class _TextLogprobs:
    """Makes the log-probabilities of one text in OpenAI's older form. A token's offset counts the
    characters before it, over all calls of `shape`."""

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
            shape["text_offset"].append(self._offset_of(bytes(entry.bytes)))
        return shape

    def _offset_of(self, piece: bytes) -> int:
        """Return the offset of a token's own characters. Earlier bytes that turn out not to be
        UTF-8 count as one character."""
        added = self._decoder.decode(piece)
        characters = min(len(added), len(piece.decode(errors="ignore")))
        self._offset += len(added)
        return self._offset - (characters or len(added))


class _Answer:
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
        # Fields of all chunks. Usage is null where the last chunk has it.
        self._empty: answers.CompletionChunk = {
            "id": self._id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": model.system_fingerprint,
            "choices": [],
        }
        if body.with_usage:
            self._empty["usage"] = None
        self._usage = TokenCounts(sum(len(prompt.tokens) for prompt in prompts))
        self._single_choices: Choices | None = None  # of a request with one prompt

    def headers(self) -> dict[str, str]:
        return self._single_choices.headers() if self._single_choices else {}

    async def whole(self) -> answers.Completion:
        choices = [WholeChoice() for _ in range(len(self._prompts) * self._body.candidates)]
        async for delta in self._deltas():
            choices[delta.index].add(delta)
        size = self._body.candidates
        groups = [choices[i : i + size] for i in range(0, len(choices), size)]
        best = [choice for group in groups for choice in _best(group, self._body.answers)]
        shapes = [self._choice(i, choice) for i, choice in enumerate(best)]
        return {**self._empty, "choices": shapes, "usage": usage(self._usage)}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the response as events, with token counts last if asked for."""
        logs = [_TextLogprobs() for _ in range(len(self._prompts) * self._body.candidates)]
        async for delta in self._deltas():
            piece = self._piece(delta.index, delta.text, logs[delta.index], delta.tokens)
            finish = _finish(delta.finish) if delta.finish else None
            choice: answers.CompletionChunkChoice = {**piece, "finish_reason": finish}
            yield sse.event({**self._empty, "choices": [choice]})
        if self._body.with_usage:
            yield sse.event({**self._empty, "usage": usage(self._usage)})
        yield sse.DONE

    def _choice(self, index: int, choice: WholeChoice) -> answers.CompletionChoice:
        piece = self._piece(index, text_of(choice.parts), _TextLogprobs(), choice.tokens)
        return {**piece, "finish_reason": _finish(choice.finish)}

    def _piece(
        self, index: int, text: str, log: _TextLogprobs, tokens: Sequence[LoggedToken]
    ) -> answers.TextPiece:
        logprobs = None if self._body.logprobs is None else log.shape(tokens)
        return {"index": index, "text": text, "logprobs": logprobs}

    def _deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        return merged([self._deltas_of(i) for i in range(len(self._prompts))], _AT_ONCE)

    async def _deltas_of(self, number: int) -> AsyncGenerator[ChoiceDelta, None]:
        """Yield the deltas of one prompt; indices count over all prompts."""
        prompt, first = self._prompts[number], number * self._body.candidates
        ends: Finish | None = "length" if prompt.max_tokens == 0 else None
        if self._body.echo:
            tokens = await self._echoed(prompt)
            for index in range(self._body.candidates):
                yield ChoiceDelta(first + index, (Text(prompt.text),), tokens, ends)
        if ends:
            return
        id = f"{self._id}-{number}"
        choices = await start(id, prompt, self._body, self._model, self._request)
        self._single_choices = choices if len(self._prompts) == 1 else None
        async with choices.generation:
            async for delta in choices.deltas():
                yield replace(delta, index=first + delta.index)
            self._usage.completion += choices.usage.completion
            self._usage.accepted += choices.usage.accepted
            self._usage.rejected += choices.usage.rejected
            self._usage.cached += choices.usage.cached

    async def _echoed(self, prompt: EncodedPrompt) -> tuple[LoggedToken, ...]:
        """Return the prompt's tokens, with log-probabilities but for the first; empty unless asked
        for."""
        if self._body.logprobs is None:
            return ()
        tokenizer = self._model.tokenizer
        scores = await self._model.engine.score(
            prompt.tokens, self._body.logprobs, self._model.adapter
        )
        first = LoggedToken(piece_entry(tokenizer.token_bytes(prompt.tokens[0]), None), ())
        pieces = [tokenizer.token_bytes(token) for token in prompt.tokens[1:]]
        others = [logged(tokenizer, *scored) for scored in zip(pieces, scores, strict=True)]
        return (first, *others)


def _by_text(chosen: TokenEntry, top: Sequence[TokenEntry]) -> dict[str, float] | None:
    """Return log-probabilities by token text, the likeliest of those with the same text."""
    if chosen.logprob is None:
        return None
    texts: dict[str, float] = {}
    for entry in (*top, chosen):
        texts.setdefault(entry.text, finite(entry.logprob) or 0.0)
    return texts


def _likelihood(choice: WholeChoice) -> float:
    logprobs = [token.entry.logprob for token in choice.tokens if token.entry.logprob is not None]
    return fmean(logprobs) if logprobs else 0.0


def _finish(finish: Finish) -> answers.TextFinish:
    return "length" if finish == "length" else "stop"


def _best(group: list[WholeChoice], count: int) -> list[WholeChoice]:
    """Return the `count` likeliest choices, the likeliest first."""
    if len(group) == count:
        return group
    return sorted(group, key=_likelihood, reverse=True)[:count]


async def merged(streams: Sequence[AsyncIterator[A]], at_once: int) -> AsyncGenerator[A, None]:
    """Yield the items of all streams, each stream's in order, with at most `at_once` running. One
    stream's error cancels the others and is raised."""
    items: asyncio.Queue[A | None] = asyncio.Queue()
    turn, room = asyncio.Semaphore(at_once), asyncio.Semaphore(_ROOM)

    async def drain(stream: AsyncIterator[A]) -> None:
        async with turn:
            async for item in stream:
                await room.acquire()
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
            room.release()
            yield item
        try:
            await work
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
    finally:
        work.cancel()
        await asyncio.wait({work})
