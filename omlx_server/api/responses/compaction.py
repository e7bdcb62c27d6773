"""A conversation made shorter: what was said for the model to obey or to answer stays as it is, and
one item stands for all the rest, with a summary that the model itself has written.

Cancelling what runs here closes the generation.
"""

import time
from collections.abc import Sequence

from omlx_server.api.access.tenant import Tenant
from omlx_server.api.chat.choices import Usage
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.turn import Turn
from omlx_server.api.context import ApiContext
from omlx_server.api.models.served import ServedModel
from omlx_server.api.responses import answers, shapes
from omlx_server.api.responses.chat_form import compaction_request, renamed_params
from omlx_server.api.responses.conversation import conversation
from omlx_server.api.responses.items.ids import ItemIds, new_response_id
from omlx_server.api.responses.schema import CompactRequest
from omlx_server.api.responses.shelf import Shelf
from omlx_server.errors import InternalError

_KEPT = ("user", "system", "developer")


class Compaction:
    """One compaction on its way: `whole` runs it, `headers` is known after that."""

    def __init__(
        self,
        asked: CompactRequest,
        model: ServedModel,
        context: ApiContext,
        shelf: Shelf,
        tenant: Tenant,
    ) -> None:
        self._asked = asked
        self._model = model
        self._context = context
        self._shelf = shelf
        self._tenant = tenant
        self._id = new_response_id()
        self.headers: dict[str, str] = {}

    async def whole(self) -> answers.CompactedResponse:
        """The compacted conversation.

        Raises:
            BadRequest, ContextTooLong, QueueFull, NoMemory, Unavailable: as any request.
            InternalError: the model wrote nothing; the conversation must go on as it is.
        """
        ids = ItemIds(self._id)
        items = await conversation(self._asked, self._shelf, ids)
        with renamed_params():
            chat = compaction_request(self._asked, items, self._model)
            summary, usage = await self._summary(chat)
        if not summary.strip():
            raise InternalError("the model wrote no summary: send the conversation as it is")
        sealed = self._shelf.seals.seal(summary)
        compacted: answers.CompactionOfResponse = {
            "id": ids.next("cmp"),
            "type": "compaction",
            "encrypted_content": sealed,
        }
        return {
            "id": self._id,
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [*_kept(items), compacted],
            "usage": shapes.usage(usage),
        }

    async def _summary(self, chat: ChatRequest) -> tuple[str, Usage]:
        """What the model wrote, without what it thought."""
        turn = Turn(chat, self._model, self._context, id=self._id, tenant=self._tenant)
        async with await turn.start() as generation:
            choices = turn.choices(generation)
            texts = [delta.text async for delta in choices.deltas()]
        self.headers = turn.headers(generation)
        return "".join(texts), choices.usage


def _kept(items: Sequence[answers.InputItem]) -> list[answers.MessageOfResponse]:
    """An instruction is no less one for being old; so nothing of it is put in other words."""
    return [item for item in items if item["type"] == "message" and item["role"] in _KEPT]
