"""Items as they are kept: JSON objects in one form, whatever form a client sent them in. Pure.

Each has an id, and a status but for compactions; contents are lists of parts. The output of a
response is kept in the same form, so that a chain of responses is one list of items.
"""

from collections.abc import Callable, Iterable, Sequence

from omlx_server.api.responses import answers
from omlx_server.api.responses.items.ids import ItemIds
from omlx_server.api.responses.schema import (
    CallItem,
    CallOutputItem,
    CompactionItem,
    Content,
    ContentPart,
    CustomCallItem,
    Item,
    MessageItem,
    ReasoningItem,
    ReferenceItem,
)
from omlx_server.errors import BadRequest

Find = Callable[[str], answers.InputItem]


def stored_form(
    given: str | Sequence[Item] | None, ids: ItemIds, find: Find
) -> list[answers.InputItem]:
    """The input of a request. `find` gives the item that a reference names, or raises.

    Raises:
        BadRequest: a part is no text.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [_message(MessageItem(role="user", content=given), "input", ids)]
    found = (_item(item, f"input.{i}", ids, find) for i, item in enumerate(given))
    return [item for item in found if item is not None]


def _item(item: Item, path: str, ids: ItemIds, find: Find) -> answers.InputItem | None:
    match item:
        case MessageItem():
            return _message(item, path, ids)
        case CallItem():
            return _call(item, ids)
        case CustomCallItem():
            return _custom_call(item, ids)
        case CallOutputItem():
            return _output(item, path, ids)
        case ReasoningItem():
            return _reasoning(item, path, ids)
        case CompactionItem():
            return _compaction(item, ids)
        case ReferenceItem():
            return find(item.id)
    return None


def _message(item: MessageItem, path: str, ids: ItemIds) -> answers.MessageOfResponse:
    texts = part_texts(item.content, f"{path}.content")
    content: list[answers.InputText | answers.OutputText] = [
        answers.OutputText(type="output_text", text=text, annotations=[])
        if item.role == "assistant"
        else answers.InputText(type="input_text", text=text)
        for text in texts
    ]
    return {
        "id": item.id or ids.next("msg"),
        "type": "message",
        "role": item.role,
        "content": content,
        "status": "completed",
    }


def _call(item: CallItem, ids: ItemIds) -> answers.FunctionCallOfResponse:
    return {
        "id": item.id or ids.next("fc"),
        "type": "function_call",
        "call_id": item.call_id,
        "name": item.name,
        "arguments": item.arguments,
        "status": "completed",
    }


def _custom_call(item: CustomCallItem, ids: ItemIds) -> answers.CustomCallOfResponse:
    return {
        "id": item.id or ids.next("fc"),
        "type": "custom_tool_call",
        "call_id": item.call_id,
        "name": item.name,
        "input": item.input,
        "status": "completed",
    }


def _output(item: CallOutputItem, path: str, ids: ItemIds) -> answers.CallOutputOfResponse:
    return {
        "id": item.id or ids.next("fco"),
        "type": item.type,
        "call_id": item.call_id,
        "output": "".join(part_texts(item.output, f"{path}.output")),
        "status": "completed",
    }


def _reasoning(item: ReasoningItem, path: str, ids: ItemIds) -> answers.ReasoningOfResponse:
    summary = part_texts(item.summary or [], f"{path}.summary")
    content = part_texts(item.content or [], f"{path}.content")
    return reasoning_shape(
        item.id or ids.next("rs"), summary, content, item.encrypted_content, "completed"
    )


def reasoning_shape(
    id: str, summary: list[str], content: list[str], sealed: str | None, status: answers.ItemStatus
) -> answers.ReasoningOfResponse:
    """`sealed` is left out where it is None."""
    shape: answers.ReasoningOfResponse = {
        "id": id,
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text} for text in summary],
        "content": [{"type": "reasoning_text", "text": text} for text in content],
        "encrypted_content": sealed or "",
        "status": status,
    }
    if sealed is None:
        del shape["encrypted_content"]
    return shape


def _compaction(item: CompactionItem, ids: ItemIds) -> answers.CompactionOfResponse:
    return {
        "id": item.id or ids.next("cmp"),
        "type": "compaction",
        "encrypted_content": item.encrypted_content,
    }


def part_texts(content: Content, path: str) -> list[str]:
    """Raises BadRequest for images, files, sounds and whatever else is no text."""
    if isinstance(content, str):
        return [content]
    return [_part_text(part, f"{path}.{i}") for i, part in enumerate(content)]


def _part_text(part: ContentPart, path: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    is_text = part.type == "refusal" or part.type == "text" or part.type.endswith("_text")
    if not is_text:
        raise BadRequest("this model takes text only", param=path)
    if text is None:
        raise BadRequest("text is missing", param=path)
    return text


def page(
    items: Iterable[answers.InputItem], *, limit: int, newest_first: bool, after: str | None
) -> tuple[list[answers.InputItem], bool]:
    """At most `limit` items that follow the one of that id, and whether there are more."""
    ordered = list(items)
    if newest_first:
        ordered.reverse()
    if after is not None:
        places = [i for i, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise BadRequest("there is no such item in this response", param="after")
        ordered = ordered[places[0] + 1 :]
    return ordered[:limit], len(ordered) > limit
