"""Turns a request's items into their stored form, which the output has too, and makes ids.

Stored items have an id and, but for compactions, a status; contents are lists of parts. Ids of
items repeat the random part of their response's id. `param` names a part of the request in errors.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from omlx_server.api.responses import answers, schema
from omlx_server.errors import BadRequest
from omlx_server.images.source import url_of_input_image

_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
_ITEM_ID = re.compile(r"[a-z]{1,8}_([0-9a-f]{32})[0-9a-f]{4}")

Find = Callable[[str], answers.InputItem]


def new_response_id() -> str:
    return f"resp_{secrets.token_hex(16)}"


def is_response_id(text: str) -> bool:
    return _RESPONSE_ID.fullmatch(text) is not None


def response_of(item_id: str) -> str | None:
    """Return the id of an item's response; None where this server made no such id."""
    match = _ITEM_ID.fullmatch(item_id)
    return f"resp_{match[1]}" if match else None


class ItemIds:
    """Makes the ids of a response's items."""

    def __init__(self, response_id: str) -> None:
        self._stem = response_id.removeprefix("resp_")
        self._count = 0

    def next(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._stem}{self._count:04x}"


def stored_form(
    given: str | Sequence[schema.Item] | None, ids: ItemIds, find: Find
) -> list[answers.InputItem]:
    """Return the input in its stored form, without items of unknown types. `find` returns the item
    of a reference.

    Raises BadRequest for a part that is neither text nor image, or an image that neither the user
    nor a tool sent; and what `find` raises.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [_message_form(schema.MessageItem(role="user", content=given), "input", ids)]
    items = (_item_form(item, f"input.{i}", ids, find) for i, item in enumerate(given))
    return [item for item in items if item is not None]


def _item_form(item: schema.Item, param: str, ids: ItemIds, find: Find) -> answers.InputItem | None:
    match item:
        case schema.MessageItem():
            return _message_form(item, param, ids)
        case schema.CallItem():
            id, tool = item.id or ids.next("fc"), (item.name, item.namespace)
            return call_shape(id, item.call_id, tool, item.arguments)
        case schema.CustomCallItem():
            id, tool = item.id or ids.next("ctc"), (item.name, item.namespace)
            return call_shape(id, item.call_id, tool, item.input, is_custom=True)
        case schema.CallOutputItem():
            return _output_form(item, param, ids)
        case schema.ReasoningItem():
            return _reasoning_form(item, param, ids)
        case schema.CompactionItem():
            return {
                "id": item.id or ids.next("cmp"),
                "type": "compaction",
                "encrypted_content": item.encrypted_content,
            }
        case schema.ReferenceItem():
            return find(item.id)
    return None


def _message_form(item: schema.MessageItem, param: str, ids: ItemIds) -> answers.MessageOfResponse:
    content_param = f"{param}.content"
    content: list[answers.MessagePart]
    if item.role == "user":
        content = [*_input_parts(item.content, content_param)]
    elif item.role == "assistant":
        texts = _part_texts(item.content, content_param)
        content = [answers.OutputText(type="output_text", text=t, annotations=[]) for t in texts]
    else:
        content = [_input_text(text) for text in _part_texts(item.content, content_param)]
    return {
        "id": item.id or ids.next("msg"),
        "type": "message",
        "role": item.role,
        "content": content,
        "status": "completed",
    }


def _output_form(item: schema.CallOutputItem, param: str, ids: ItemIds) -> answers.InputItem:
    parts = _input_parts(item.output, f"{param}.output")
    texts = [part["text"] for part in parts if part["type"] == "input_text"]
    return {
        "id": item.id or ids.next("fco"),
        "type": item.type,
        "call_id": item.call_id,
        "output": "".join(texts) if len(texts) == len(parts) else parts,
        "status": "completed",
    }


def _reasoning_form(item: schema.ReasoningItem, param: str, ids: ItemIds) -> answers.InputItem:
    summary = _part_texts(item.summary or [], f"{param}.summary")
    content = _part_texts(item.content or [], f"{param}.content")
    return reasoning_shape(
        item.id or ids.next("rs"), summary, content, item.encrypted_content, "completed"
    )


def call_shape(
    id: str,
    call_id: str,
    tool: tuple[str, str | None],
    text: str,
    status: answers.ItemStatus = "completed",
    *,
    is_custom: bool = False,
) -> answers.FunctionCallOfResponse | answers.CustomCallOfResponse:
    """`tool` is its name and namespace; `text` its arguments or its input."""
    fields = {"id": id, "call_id": call_id, "name": tool[0], "status": status}
    if tool[1] is not None:
        fields["namespace"] = tool[1]
    if is_custom:
        custom = {**fields, "type": "custom_tool_call", "input": text}
        return cast(answers.CustomCallOfResponse, custom)
    function = {**fields, "type": "function_call", "arguments": text}
    return cast(answers.FunctionCallOfResponse, function)


def reasoning_shape(
    id: str, summary: list[str], content: list[str], sealed: str | None, status: answers.ItemStatus
) -> answers.ReasoningOfResponse:
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


def _input_parts(content: schema.Content, param: str) -> list[answers.InputPart]:
    if isinstance(content, str):
        return [_input_text(content)]
    return [_input_part(part, f"{param}.{i}") for i, part in enumerate(content)]


def _input_part(part: schema.ContentPart, param: str) -> answers.InputPart:
    if part.type != "input_image":
        return _input_text(_part_text(part, param))
    url = url_of_input_image(part.model_dump(exclude_none=True), param=param)
    return answers.InputImage(type="input_image", image_url=url, detail=part.detail or "auto")


def _input_text(text: str) -> answers.InputText:
    return answers.InputText(type="input_text", text=text)


def _part_texts(content: schema.Content, param: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [_part_text(part, f"{param}.{i}") for i, part in enumerate(content)]


def _part_text(part: schema.ContentPart, param: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type == "input_image":
        raise BadRequest("only the user and tools may give images", param=param)
    if part.type not in ("text", "refusal") and not part.type.endswith("_text"):
        raise BadRequest("messages may hold text and images only", param=param)
    if text is None:
        raise BadRequest("text is missing", param=param)
    return text


def page_of_items(
    items: Iterable[answers.InputItem], limit: int, after: str | None, *, newest_first: bool
) -> answers.InputItemList:
    """Return at most `limit` items after that with the id `after`. Raises BadRequest."""
    following = list(items)
    if newest_first:
        following.reverse()
    if after is not None:
        ids = [item["id"] for item in following]
        if after not in ids:
            raise BadRequest("there is no such item in this response", param="after")
        following = following[ids.index(after) + 1 :]
    shown = following[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": len(following) > limit,
    }
