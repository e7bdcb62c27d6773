"""What a request goes on from, and what it adds."""

from omlx_server.api.responses.answers import InputItem
from omlx_server.api.responses.items.ids import ItemIds
from omlx_server.api.responses.items.items import stored_form
from omlx_server.api.responses.schema import PromptFields, ReferenceItem
from omlx_server.api.responses.shelf import Shelf
from omlx_server.errors import PreviousResponseNotFound


async def conversation(asked: PromptFields, shelf: Shelf, ids: ItemIds) -> list[InputItem]:
    """All items up to the answer: those of the response before, then the request's own.

    Raises:
        PreviousResponseNotFound, ItemNotFound, BadRequest: as clients expect.
    """
    before: list[InputItem] = []
    if asked.previous_response_id is not None:
        stored = await shelf.get(asked.previous_response_id)
        if stored is None:
            raise PreviousResponseNotFound(
                "the previous response is not found: it was not stored, was deleted, or had to go "
                "for newer ones",
                param="previous_response_id",
            )
        before = stored.conversation
    named = await _referenced(asked, shelf)
    items = before + stored_form(asked.input, ids, named.__getitem__)
    for item in items:
        if item["type"] == "compaction":
            shelf.seals.check(item["encrypted_content"], "input")
    return items


async def _referenced(asked: PromptFields, shelf: Shelf) -> dict[str, InputItem]:
    items = asked.input if isinstance(asked.input, list) else []
    wanted = {item.id for item in items if isinstance(item, ReferenceItem)}
    return {id: await shelf.item(id) for id in sorted(wanted)}
