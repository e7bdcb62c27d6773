"""Compacts a conversation: messages of user, system and developer stay, a summary of the model's
replaces the rest.

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
    body: CompactRequest, model: ServedModel, request: Request
) -> tuple[answers.CompactedResponse, dict[str, str]]:
    """Return the compacted conversation and the headers of its answer.

    Raises InternalError if the model wrote no summary, and what `Shelf.conversation` and
    `ChatTurn.start` raise.
    """
    id, shelf = new_response_id(), shelf_of(request)
    ids = ItemIds(id)
    items = await shelf.conversation(body, ids)
    with renamed_params():
        chat = await context_of(request).threads.run(
            compaction_request, body, items, model, beside=image_chars(items)
        )
        choices = await ChatTurn(chat, model, request, id).start()
        async with choices.generation:
            summary = "".join([delta.text async for delta in choices.deltas()])
    if not summary.strip():
        raise InternalError("the model wrote no summary: send the conversation as it is")
    # Old instructions still hold, so they are kept word for word.
    messages = [one for one in items if one["type"] == "message" and one["role"] in _KEPT]
    item: answers.CompactionOfResponse = {
        "id": ids.next("cmp"),
        "type": "compaction",
        "encrypted_content": shelf.seals.seal(summary),
    }
    answer: answers.CompactedResponse = {
        "id": id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*messages, item],
        "usage": shapes.usage(choices.usage),
    }
    return answer, choices.headers()
