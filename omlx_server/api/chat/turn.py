"""One turn of a conversation. Every chat API translates its requests into the chat request that
this module renders, encodes and queues."""

from dataclasses import dataclass, replace

from fastapi import Request

from omlx_server.api.access.tenant import owner_of, salt_of
from omlx_server.api.chat import prompt
from omlx_server.api.chat.choices import Choices
from omlx_server.api.chat.plan import constraint_of, form_of
from omlx_server.api.chat.prompt import Encoded
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.sampling import SamplingFields
from omlx_server.api.context import context_of
from omlx_server.api.http.exchange import current, known_as
from omlx_server.api.models.served import ServedModel
from omlx_server.core.request import Request as EngineRequest
from omlx_server.core.request import RequestId
from omlx_server.text.answers.form import Form


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One turn to be answered. `request` is the HTTP request, `id` the id of the engine's request.
    Cancelling `start` cancels what it has queued."""

    chat: ChatRequest
    model: ServedModel
    request: Request
    id: str

    async def count(self) -> int:
        """How many tokens the prompt has. Raises BadRequest and ContextTooLong."""
        return len((await self._encoded()).tokens)

    async def start(self) -> Choices:
        """Render the prompt, encode it and queue the request. Every fault of a request is found
        here, before a response begins.

        Raises:
            BadRequest, ContextTooLong: the request is wrong, or its prompt too long.
            QueueFull, NoMemory, Unavailable: the engine does not take the request.
        """
        chat, model = self.chat, self.model
        with model.engine.preparing():
            encoded = await self._encoded()
            constraint = await constraint_of(chat, encoded.plan, model, encoded.opening)
            request = EngineRequest(
                RequestId(self.id),
                tuple(encoded.tokens),
                prompt.sampling_of(chat, model, len(encoded.tokens)),
                n=chat.n or 1,
                checkpoints_at=encoded.checkpoints_at,
                constraint=constraint,
            )
            form = form_of(chat, encoded.plan, model, encoded.opening)
            choices = await submit(request, form, model, self.request, chat)
        choices.usage.dropped = encoded.dropped
        return choices

    async def _encoded(self) -> Encoded:
        prompt.check_supported(self.chat)
        run, size = context_of(self.request).threads.run, prompt.size_of(self.chat)
        return await run(prompt.encode, self.chat, self.model, size=size)


async def submit(
    request: EngineRequest, form: Form, model: ServedModel, http: Request, asked: SamplingFields
) -> Choices:
    """Queue `request` and return its choices, which `form` says how to read. The HTTP request
    `http` and its body `asked` decide its salt (whose cached prefixes it shares), its owner, its
    priority, its deadline, and how tokens are drafted for it.

    Raises:
        QueueFull, NoMemory, Unavailable: the engine does not take the request.
    """
    known_as(request.id)
    context = context_of(http)
    # `arrived` is when the HTTP request began: the wait for a model to load counts as waiting.
    arrived, timeout = current().started, context.request_timeout_seconds
    of_client = replace(
        request,
        priority=asked.priority or 0,
        arrived=arrived,
        deadline=arrived + timeout if timeout else None,
        salt=salt_of(http, asked.cache_salt),
        owner=owner_of(http),
        speculation=asked.speculation,
    )
    generation = await model.engine.submit(of_client)
    return Choices(generation, model.tokenizer, form, context.metrics.of(model.names[0]))
