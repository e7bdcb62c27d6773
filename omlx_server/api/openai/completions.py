"""POST /v1/completions: texts that go on. Every prompt is a request of its own to the engine."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.access.tenant import Tenant, tenant_of
from omlx_server.api.chat.choices import ChoiceDelta, Choices, LoggedToken, Usage, logged
from omlx_server.api.chat.finish import Finish
from omlx_server.api.chat.plan import with_bad_words
from omlx_server.api.context import ApiContext, context_of
from omlx_server.api.description.operation import MODEL, WORK, Events, described
from omlx_server.api.http import body, sse
from omlx_server.api.http.exchange import begun, known_as
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.merge import merged
from omlx_server.api.models.served import ServedModel
from omlx_server.api.openai import completion_prompts
from omlx_server.api.openai.answers import (
    Completion,
    CompletionChoice,
    CompletionEvent,
    TextFinish,
    TextPiece,
)
from omlx_server.api.openai.completion_prompts import EncodedPrompt
from omlx_server.api.openai.completion_schema import CompletionRequest
from omlx_server.api.openai.completion_shapes import CompletionShapes, TextLogprobs
from omlx_server.core.request import Constraint, RequestId
from omlx_server.core.request import Request as EngineRequest
from omlx_server.engine.client.generation import Generation
from omlx_server.text.answers.answer import piece_entry
from omlx_server.text.answers.form import Form
from omlx_server.text.parts import Text

router = APIRouter()

_DESCRIBED = described(
    "Completions",
    Completion,
    body=CompletionRequest,
    events=Events(CompletionEvent, done=True),
    may_fail=MODEL + WORK,
)

# The others wait here, so that a long list of prompts does not fill the queue of everybody.
_AT_ONCE = 16


@router.post("/v1/completions", openapi_extra=_DESCRIBED)
async def completions(request: Request) -> Response:
    """Continue one prompt or several, whole or as a stream of server-sent events."""
    context = context_of(request)
    asked = await body.read(request, CompletionRequest, context.max_body_bytes)
    model = await context.models.find(asked.model)
    asked.check()
    prompts = await context.threads.run(partial(completion_prompts.encode, asked, model))
    answer = _Answer(asked, model, context, tenant_of(request, asked.cache_salt), prompts)
    if asked.stream:
        return sse.EventStream(answer.events(), context.ping_seconds)
    return JsonResponse(await sse.while_connected(request.receive, answer.whole()))


class _Answer:
    """One response on its way. Closing an iterator of it closes its generations."""

    def __init__(
        self,
        asked: CompletionRequest,
        model: ServedModel,
        context: ApiContext,
        tenant: Tenant,
        prompts: list[EncodedPrompt],
    ) -> None:
        self._asked = asked
        self._model = model
        self._context = context
        self._tenant = tenant
        self._prompts = prompts
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._shapes = CompletionShapes(
            self._id,
            int(time.time()),
            asked.model,
            model.system_fingerprint,
            with_usage=asked.with_usage,
        )
        self._usage = Usage(sum(len(prompt.tokens) for prompt in prompts))

    async def whole(self) -> Completion:
        """The response in one piece."""
        choices = [_Whole() for _ in range(len(self._prompts) * self._asked.candidates)]
        async for delta in self._deltas():
            choices[delta.index].add(delta)
        wanted, made = self._asked.answers, self._asked.candidates
        groups = [choices[i : i + made] for i in range(0, len(choices), made)]
        best = [choice for group in groups for choice in _best(group, wanted)]
        shapes = [self._whole_choice(i, choice) for i, choice in enumerate(best)]
        return self._shapes.completion(shapes, self._usage)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The response as events; usage in a last chunk when it was asked for."""
        logs = [TextLogprobs() for _ in range(len(self._prompts) * self._asked.candidates)]
        async for delta in self._deltas():
            piece = self._piece(delta.index, delta.text, logs[delta.index], delta.tokens)
            yield sse.event(self._shapes.chunk({**piece, "finish_reason": _finish(delta)}))
        if self._asked.with_usage:
            yield sse.event(self._shapes.last(self._usage))
        yield sse.DONE

    def _whole_choice(self, index: int, choice: "_Whole") -> CompletionChoice:
        piece = self._piece(index, "".join(choice.texts), TextLogprobs(), choice.tokens)
        return {**piece, "finish_reason": choice.finish}

    def _piece(
        self, index: int, text: str, log: TextLogprobs, tokens: Sequence[LoggedToken]
    ) -> TextPiece:
        logprobs = None if self._asked.logprobs is None else log.shape(tokens)
        return {"index": index, "text": text, "logprobs": logprobs}

    def _deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        return merged([self._deltas_of(i) for i in range(len(self._prompts))], _AT_ONCE)

    async def _deltas_of(self, number: int) -> AsyncGenerator[ChoiceDelta, None]:
        """Those of one prompt. Choices are numbered over all prompts."""
        prompt, first = self._prompts[number], number * self._asked.candidates
        ends: Finish | None = "length" if prompt.max_tokens == 0 else None
        if self._asked.echo:
            tokens = await self._echoed(prompt)
            for index in range(self._asked.candidates):
                yield ChoiceDelta(first + index, (Text(prompt.text),), tokens, ends)
        if ends:
            return
        async with await self._submit(number) as generation:
            metrics = self._context.metrics.of(self._model.names[0])
            followed = metrics.follow(len(prompt.tokens))
            choices = Choices(generation, self._model.tokenizer, self._form, followed)
            async for delta in choices.deltas():
                yield replace(delta, index=first + delta.index)
            self._usage.completion += choices.usage.completion
            self._usage.cached += choices.usage.cached

    async def _echoed(self, prompt: EncodedPrompt) -> tuple[LoggedToken, ...]:
        """The prompt's own tokens with their log-probabilities, when those are asked for. The first
        has none."""
        if self._asked.logprobs is None:
            return ()
        tokenizer = self._model.tokenizer
        scores = await self._model.engine.score(prompt.tokens, self._asked.logprobs)
        first = LoggedToken(piece_entry(tokenizer.token_bytes(prompt.tokens[0]), None), ())
        pieces = [tokenizer.token_bytes(token) for token in prompt.tokens[1:]]
        others = [logged(tokenizer, *scored) for scored in zip(pieces, scores, strict=True)]
        return (first, *others)

    @property
    def _form(self) -> Form:
        include_stop = bool(self._asked.include_stop_str_in_output)
        return Form(self._asked.stops, include_stop, continues=True)

    async def _submit(self, number: int) -> Generation:
        with self._model.engine.preparing():
            wanted, grammars = self._asked.format, self._model.grammars
            grammar = None if wanted is None else await grammars.constraint(wanted)
            constraint = with_bad_words(grammar, self._asked.bad_words or (), self._model)
            request = self._request(number, constraint)
            known_as(request.id)
            return await self._model.engine.submit(request)

    def _request(self, number: int, constraint: Constraint | None) -> EngineRequest:
        prompt, arrived = self._prompts[number], begun()
        timeout = self._context.request_timeout_seconds
        ranked = self._asked.candidates > self._asked.answers
        top = 0 if ranked and self._asked.logprobs is None else self._asked.logprobs
        return EngineRequest(
            id=RequestId(f"{self._id}-{number}"),
            tokens=prompt.tokens,
            sampling=self._asked.params(
                self._model, max_tokens=prompt.max_tokens, top_logprobs=top
            ),
            n=self._asked.candidates,
            priority=self._asked.priority or 0,
            arrived=arrived,
            deadline=arrived + timeout if timeout else None,
            salt=self._tenant.salt,
            constraint=constraint,
            owner=self._tenant.owner,
        )


class _Whole:
    """One choice as it is put together."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens: list[LoggedToken] = []
        self.finish: TextFinish = "stop"

    def add(self, delta: ChoiceDelta) -> None:
        self.texts.append(delta.text)
        self.tokens += delta.tokens
        self.finish = _finish(delta) or self.finish

    @property
    def likelihood(self) -> float:
        """Of a token on average."""
        known = [token.entry.logprob for token in self.tokens if token.entry.logprob is not None]
        return fmean(known) if known else 0.0


def _finish(delta: ChoiceDelta) -> TextFinish | None:
    """A text calls no tools."""
    return "stop" if delta.finish == "tool_calls" else delta.finish


def _best(group: list[_Whole], count: int) -> list[_Whole]:
    """In their own order when all are wanted."""
    if len(group) == count:
        return group
    return sorted(group, key=lambda choice: -choice.likelihood)[:count]
