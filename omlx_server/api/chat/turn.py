"""One turn of a conversation, for all chat APIs: encode and queue a chat request."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

from fastapi import Request

from omlx_server import clock
from omlx_server.api.access.tenant import client_of, conversation_of, salt_of
from omlx_server.api.chat import prompt
from omlx_server.api.chat.choices import Choices
from omlx_server.api.chat.images import ChatImages, compute_features, image_turns, read_images
from omlx_server.api.chat.plan import constraint_of, form_of, sampling_of
from omlx_server.api.chat.prompt import ChatPrompt
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.sampling import SamplingFields
from omlx_server.api.context import ApiContext, context_of
from omlx_server.api.http.exchange import current_exchange, link_engine_request
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.images import ImageSpan
from omlx_server.core.request import Constraint, RequestId, SamplingParams
from omlx_server.core.request import Request as EngineRequest
from omlx_server.errors import DeadlineExceeded
from omlx_server.text.answers.form import AnswerForm


async def read_and_encode(chat: ChatRequest, model: ServedModel, request: Request) -> ChatPrompt:
    """Read the images of a chat and return its prompt."""
    images = await read_images(chat, model, image_turns(request))
    return await encode_chat(chat, model, images, context_of(request))


async def encode_chat(
    chat: ChatRequest, model: ServedModel, images: ChatImages | None, context: ApiContext
) -> ChatPrompt:
    """Return the prompt of a chat. Raises as `prompt.encode`."""
    size, other_bytes = prompt.text_chars(chat), images.nbytes if images else 0
    return await context.threads.run(
        prompt.encode, chat, model, images, size=size, other_bytes=other_bytes
    )


@dataclass(frozen=True, slots=True, eq=False)
class ChatTurn:
    """One turn to be answered. `id` is the id of the engine's request."""

    chat: ChatRequest
    model: ServedModel
    request: Request
    id: str

    async def count_tokens(self) -> int:
        """Count the tokens of the prompt."""
        prompt.check_supported(self.chat)
        encoded = await read_and_encode(self.chat, self.model, self.request)
        return len(encoded.tokens)

    async def start(self) -> Choices:
        """Queue the request, before a response begins. Raises BadRequest, ContextTooLong, what the
        engine raises, and DeadlineExceeded if images and texts took all of its time."""
        chat, model = self.chat, self.model
        prompt.check_supported(chat)
        async with _within_deadline(self.request):
            images = await read_images(chat, model, image_turns(self.request))
        # Images take a while: the scheduler does not wait for them.
        with nullcontext() if images else model.engine.preparing():
            async with _within_deadline(self.request):
                encoded = await encode_chat(chat, model, images, context_of(self.request))
            constraint = await constraint_of(chat, encoded.plan, model, encoded.opening)
            request = engine_request(
                self.id,
                encoded.tokens,
                sampling_of(chat, model, len(encoded.tokens)),
                chat,
                model,
                self.request,
                n=chat.n or 1,
                constraint=constraint,
                checkpoints_at=encoded.checkpoints_at,
                images=encoded.images,
            )
            form = form_of(chat, encoded.plan, model, encoded.opening)
            async with self._features_kept(images, request):
                choices = await submit(request, form, model, self.request)
        choices.usage.dropped = encoded.dropped
        return choices

    @asynccontextmanager
    async def _features_kept(
        self, images: ChatImages | None, request: EngineRequest
    ) -> AsyncIterator[None]:
        """Compute the features of `images`, and keep them until the context ends."""
        if images is None:
            yield
            return
        engine, turns = self.model.engine, image_turns(self.request)
        async with engine.keeping_images(request.images):
            async with _within_deadline(self.request):
                await compute_features(images, request, engine, turns)
            yield


@asynccontextmanager
async def _within_deadline(http: Request) -> AsyncIterator[None]:
    """Raise DeadlineExceeded when the request's time is over."""
    timeout = context_of(http).request_timeout_seconds
    seconds_left = current_exchange().started + timeout - clock.now() if timeout else None
    try:
        async with clock.timeout(seconds_left):
            yield
    except TimeoutError:
        raise DeadlineExceeded("the request did not finish within its time limit") from None


def engine_request(
    id: str,
    tokens: Sequence[int],
    sampling: SamplingParams,
    body: SamplingFields,
    model: ServedModel,
    http: Request,
    *,
    n: int = 1,
    constraint: Constraint | None = None,
    checkpoints_at: tuple[int, ...] = (),
    images: tuple[ImageSpan, ...] = (),
) -> EngineRequest:
    """Return the request for the engine, with sender, priority, deadline and adapter."""
    # The wait for a model to load counts as waiting, so the HTTP request's begin is the arrival.
    arrived, timeout = current_exchange().started, context_of(http).request_timeout_seconds
    conversation_name = body.prompt_cache_key or body.safety_identifier or body.user
    return EngineRequest(
        RequestId(id),
        tuple(tokens),
        sampling,
        n=n,
        priority=body.priority or 0,
        arrived=arrived,
        deadline=arrived + timeout if timeout else None,
        salt=salt_of(http, body.cache_salt),
        checkpoints_at=checkpoints_at,
        constraint=constraint,
        owner=client_of(http),
        conversation=conversation_of(conversation_name, tokens),
        speculation=body.speculation,
        images=images,
        adapter=model.adapter,
    )


async def submit(
    request: EngineRequest, form: AnswerForm, model: ServedModel, http: Request
) -> Choices:
    """Queue a request of `engine_request`. Raises as the engine, and DeadlineExceeded."""
    link_engine_request(request.id)
    # It may have to wait for the adapter.
    async with _within_deadline(http) if model.adapter is not None else nullcontext():
        generation = await model.engine.submit(request)
    metrics = context_of(http).metrics.of(model.names[0])
    return Choices(generation, model.tokenizer, form, metrics)
