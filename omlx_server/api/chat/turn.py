"""One turn of a conversation, whatever protocol asked for it in the form of a chat request."""

import math
from functools import partial

from omlx_server.api.access.tenant import Tenant
from omlx_server.api.chat import prompt
from omlx_server.api.chat.choices import Choices
from omlx_server.api.chat.plan import constraint_of, form_of
from omlx_server.api.chat.prompt import Encoded
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.context import ApiContext
from omlx_server.api.http.exchange import known_as
from omlx_server.api.models.served import ServedModel
from omlx_server.core.request import Miss, RequestId
from omlx_server.engine.client.generation import Generation


class Turn:
    """Cancelling what runs here closes the generation."""

    def __init__(
        self,
        chat: ChatRequest,
        model: ServedModel,
        context: ApiContext,
        *,
        id: str,
        tenant: Tenant,
    ) -> None:
        prompt.check_supported(chat)
        self._chat = chat
        self._model = model
        self._context = context
        self._id = RequestId(id)
        self._tenant = tenant
        self._encoded: Encoded | None = None

    async def count(self) -> int:
        """The tokens of the prompt. Raises BadRequest and ContextTooLong."""
        return len((await self._encode()).tokens)

    async def start(self) -> Generation:
        """Render, encode and queue. All that is wrong with a request comes out here.

        Raises:
            BadRequest, ContextTooLong, QueueFull, NoMemory, Unavailable.
        """
        known_as(self._id)
        with self._model.engine.preparing():
            encoded = await self._encode()
            constraint = await constraint_of(self._chat, encoded.plan, self._model, encoded.opening)
            request = prompt.build_request(
                self._chat,
                self._model,
                self._id,
                encoded,
                constraint,
                timeout=self._context.request_timeout_seconds,
                tenant=self._tenant,
            )
            return await self._model.engine.submit(request)

    def choices(self, generation: Generation) -> Choices:
        """The answers of what `start` has given."""
        encoded = self._encoded
        assert encoded is not None, "start comes first"
        form = form_of(self._chat, encoded.plan, self._model, encoded.opening)
        metrics = self._context.metrics.of(self._model.names[0])
        followed = metrics.follow(len(generation.request.tokens))
        choices = Choices(generation, self._model.tokenizer, form, followed)
        choices.usage.dropped = encoded.dropped
        return choices

    def headers(self, generation: Generation) -> dict[str, str]:
        """What the prefix cache had, once it is known, what of the conversation is missing, and
        when the first token comes at the latest."""
        dropped = self._encoded.dropped if self._encoded is not None else 0
        headers = {"X-Omlx-Dropped-Messages": str(dropped)} if dropped else {}
        if generation.within:
            headers["X-Omlx-Longest-Wait"] = str(math.ceil(generation.within))
        found = generation.admission
        if found is None:
            return headers
        headers["X-Omlx-Cached-Tokens"] = str(found.cached)
        if found.miss is not Miss.NONE:
            headers["X-Omlx-Cache-Miss"] = f"{found.miss}; known-tokens={found.known}"
        return headers

    async def _encode(self) -> Encoded:
        if self._encoded is None:
            work = partial(prompt.encode, self._chat, self._model)
            self._encoded = await self._context.threads.run(work, prompt.size_of(self._chat))
        return self._encoded
