"""Makes a conversation shorter: the messages of user, system and developer stay as they are, and
one item takes the place of all the rest, with a summary that the model itself writes.

Cancelling `compacted` closes the generation.
"""

import time

from fastapi import Request

from omlx_server.api.chat.turn import ChatTurn
from omlx_server.api.context import context_of
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.responses import answers, shapes
from omlx_server.api.responses.chat_form import compaction_request, renamed_params
from omlx_server.api.responses.items.ids import ItemIds, new_response_id
from omlx_server.api.responses.items.messages import image_chars
from omlx_server.api.responses.schema import CompactRequest
from omlx_server.api.responses.shelf import shelf_of
from omlx_server.errors import InternalError

_KEPT = ("user", "system", "developer")


async def compacted(
    asked: CompactRequest, model: ServedModel, request: Request
) -> tuple[answers.CompactedResponse, dict[str, str]]:
    """The compacted conversation, and the headers of its answer.

    Raises:
        InternalError: the model wrote no summary.
        Whatever `Shelf.conversation` and `Turn.start` raise.
    """
    id, shelf = new_response_id(), shelf_of(request)
    ids = ItemIds(id)
    items = await shelf.conversation(asked, ids)
    with renamed_params():
        chat = await context_of(request).threads.run(
            compaction_request, asked, items, model, beside=image_chars(items)
        )
        choices = await ChatTurn(chat, model, request, id).start()
        async with choices.generation:
            summary = "".join([delta.text async for delta in choices.deltas()])
    if not summary.strip():
        raise InternalError("the model wrote no summary: send the conversation as it is")
    # Old instructions still hold, so they are kept word for word.
    kept = [one for one in items if one["type"] == "message" and one["role"] in _KEPT]
    item: answers.CompactionOfResponse = {
        "id": ids.next("cmp"),
        "type": "compaction",
        "encrypted_content": shelf.seals.seal(summary),
    }
    answer: answers.CompactedResponse = {
        "id": id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*kept, item],
        "usage": shapes.usage(choices.usage),
    }
    return answer, choices.headers()
