"""POST /v1/completions: continues texts. Each prompt becomes an engine request of its own."""

import codecs
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

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
from omlx_server.api.chat.plan import with_bad_words
from omlx_server.api.chat.turn import submit
from omlx_server.api.context import context_of, in_time
from omlx_server.api.description.operation import MODEL, WORK, Events, Operation
from omlx_server.api.http import json_body, sse
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.merge import merged
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.openai import answers, completion_prompts
from omlx_server.api.openai.completion_prompts import EncodedPrompt
from omlx_server.api.openai.completion_schema import CompletionRequest
from omlx_server.api.openai.shapes import finite, usage
from omlx_server.core.request import Request as EngineRequest
from omlx_server.core.request import RequestId
from omlx_server.text.answers.answer import TokenEntry, piece_entry, text_of
from omlx_server.text.answers.form import AnswerForm
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

# So many prompts of a request are with the engine at a time; its others wait here, so that a long
# list of prompts does not fill the queue that all clients share.
_AT_ONCE = 16
_utf8 = codecs.getincrementaldecoder("utf-8")


@router.post("/v1/completions", openapi_extra=_DESCRIBED)
async def completions(request: Request) -> Response:
    """Continue one prompt or several, whole or as a stream of server-sent events."""
    context = context_of(request)
    asked = await json_body.read(request, CompletionRequest, context.max_body_bytes)
    model = await context.models.find(asked.model, adapter=asked.adapter, preset=asked.preset)
    asked.check()
    encoding = context.threads.run(completion_prompts.encode, asked, model)
    prompts = await in_time(request, encoding)
    answer = _Answer(asked, model, request, prompts)
    if asked.stream:
        return sse.EventStream(answer.events(), context.keepalive_seconds, answer.headers)
    content = await while_connected(request.receive, answer.whole())
    return JsonResponse(content, headers=answer.headers())


@dataclass(slots=True)
class _TextLogprobs:
    """Makes the log-probabilities of one text in OpenAI's older form, token by token. A token's
    offset is the number of characters before it in the whole text, over all calls of `shape`."""

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
        """The offset at which a token's own characters begin. Bytes before it that turn out to be
        no UTF-8 count as one character more."""
        added = self._decoder.decode(piece)
        own = min(len(added), len(piece.decode(errors="ignore")))
        self._offset += len(added)
        return self._offset - (own or len(added))


class _Answer:
    """Makes one response, whole or as events. Closing the iterator that `events` returns closes
    its generations."""

    def __init__(
        self,
        asked: CompletionRequest,
        model: ServedModel,
        request: Request,
        prompts: list[EncodedPrompt],
    ) -> None:
        self._asked = asked
        self._model = model
        self._request = request
        self._prompts = prompts
        self._id = f"cmpl-{uuid.uuid4().hex}"
        # What all chunks share. Usage is null where a last chunk will tell it.
        self._empty: answers.CompletionChunk = {
            "id": self._id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": asked.model,
            "system_fingerprint": model.system_fingerprint,
            "choices": [],
        }
        if asked.with_usage:
            self._empty["usage"] = None
        self._usage = TokenCounts(sum(len(prompt.tokens) for prompt in prompts))
        self._only: Choices | None = None  # of a request with one prompt

    def headers(self) -> dict[str, str]:
        """As `Choices.headers`. Of several prompts none: each would have its own."""
        return self._only.headers() if self._only else {}

    async def whole(self) -> answers.Completion:
        """The whole response as one JSON answer."""
        choices = [WholeChoice() for _ in range(len(self._prompts) * self._asked.candidates)]
        async for delta in self._deltas():
            choices[delta.index].add(delta)
        wanted, made = self._asked.answers, self._asked.candidates
        groups = [choices[i : i + made] for i in range(0, len(choices), made)]
        best = [choice for group in groups for choice in _best(group, wanted)]
        shapes = [self._choice(i, choice) for i, choice in enumerate(best)]
        return {**self._empty, "choices": shapes, "usage": usage(self._usage)}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The response as events. The last chunk has the token counts, if the request asked for
        them; `[DONE]` ends the stream."""
        logs = [_TextLogprobs() for _ in range(len(self._prompts) * self._asked.candidates)]
        async for delta in self._deltas():
            piece = self._piece(delta.index, delta.text, logs[delta.index], delta.tokens)
            finish = _finish(delta.finish) if delta.finish else None
            choice: answers.CompletionChunkChoice = {**piece, "finish_reason": finish}
            yield sse.event({**self._empty, "choices": [choice]})
        if self._asked.with_usage:
            yield sse.event({**self._empty, "usage": usage(self._usage)})
        yield sse.DONE

    def _choice(self, index: int, choice: WholeChoice) -> answers.CompletionChoice:
        piece = self._piece(index, text_of(choice.parts), _TextLogprobs(), choice.tokens)
        return {**piece, "finish_reason": _finish(choice.finish)}

    def _piece(
        self, index: int, text: str, log: _TextLogprobs, tokens: Sequence[LoggedToken]
    ) -> answers.TextPiece:
        logprobs = None if self._asked.logprobs is None else log.shape(tokens)
        return {"index": index, "text": text, "logprobs": logprobs}

    def _deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        return merged([self._deltas_of(i) for i in range(len(self._prompts))], _AT_ONCE)

    async def _deltas_of(self, number: int) -> AsyncGenerator[ChoiceDelta, None]:
        """The deltas of one prompt's choices; their indices count over all prompts."""
        prompt, first = self._prompts[number], number * self._asked.candidates
        ends: Finish | None = "length" if prompt.max_tokens == 0 else None
        if self._asked.echo:
            tokens = await self._echoed(prompt)
            for index in range(self._asked.candidates):
                yield ChoiceDelta(first + index, (Text(prompt.text),), tokens, ends)
        if ends:
            return
        choices = await self._start(number)
        self._only = choices if len(self._prompts) == 1 else None
        async with choices.generation:
            async for delta in choices.deltas():
                yield replace(delta, index=first + delta.index)
            self._usage.completion += choices.usage.completion
            self._usage.accepted += choices.usage.accepted
            self._usage.rejected += choices.usage.rejected
            self._usage.cached += choices.usage.cached

    async def _echoed(self, prompt: EncodedPrompt) -> tuple[LoggedToken, ...]:
        """The prompt's own tokens with their log-probabilities, which the first token does not
        have; empty where the request does not ask for them."""
        if self._asked.logprobs is None:
            return ()
        tokenizer = self._model.tokenizer
        scores = await self._model.engine.score(
            prompt.tokens, self._asked.logprobs, self._model.adapter
        )
        first = LoggedToken(piece_entry(tokenizer.token_bytes(prompt.tokens[0]), None), ())
        pieces = [tokenizer.token_bytes(token) for token in prompt.tokens[1:]]
        others = [logged(tokenizer, *scored) for scored in zip(pieces, scores, strict=True)]
        return (first, *others)

    async def _start(self, number: int) -> Choices:
        asked, model, prompt = self._asked, self._model, self._prompts[number]
        ranked = asked.candidates > asked.answers
        top = 0 if ranked and asked.logprobs is None else asked.logprobs
        with model.engine.preparing():
            wanted = asked.format
            grammar = None if wanted is None else await model.grammars.constraint(wanted)
            request = EngineRequest(
                RequestId(f"{self._id}-{number}"),
                prompt.tokens,
                asked.params(model, max_tokens=prompt.max_tokens, top_logprobs=top),
                n=asked.candidates,
                constraint=with_bad_words(grammar, asked.bad_words or (), model),
            )
            form = AnswerForm(
                asked.stops(model), bool(asked.include_stop_str_in_output), continues=True
            )
            return await submit(request, form, model, self._request, asked)


def _by_text(chosen: TokenEntry, top: Sequence[TokenEntry]) -> dict[str, float] | None:
    """Log-probabilities by the text of a token: those of `top` and of the chosen token. Of several
    tokens with the same text the likeliest counts."""
    if chosen.logprob is None:
        return None
    texts: dict[str, float] = {}
    for entry in (*top, chosen):
        texts.setdefault(entry.text, finite(entry.logprob) or 0.0)
    return texts


def _likelihood(choice: WholeChoice) -> float:
    """The mean log-probability of the tokens of a choice."""
    known = [token.entry.logprob for token in choice.tokens if token.entry.logprob is not None]
    return fmean(known) if known else 0.0


def _finish(finish: Finish) -> answers.TextFinish:
    """The finish reason of a text, which can't be "tool_calls"."""
    return "length" if finish == "length" else "stop"


def _best(group: list[WholeChoice], count: int) -> list[WholeChoice]:
    """The `count` likeliest choices, the likeliest first; in their own order if all are wanted."""
    if len(group) == count:
        return group
    return sorted(group, key=_likelihood, reverse=True)[:count]
