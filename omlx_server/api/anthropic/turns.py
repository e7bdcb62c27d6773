"""Convert the turns of a Messages request into the messages of a chat.

Turns keep their order, system turns too: a system turn moved to the front would miss the prefix
cache. Tool results go first in their turn, and neighbouring messages of one role are joined, as
templates expect. Content with images becomes a list of parts, other content one text. Tools that
Anthropic ran split the assistant's turn; a summary (`compaction`) replaces all before it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from pydantic import ValidationError

from omlx_server.api.anthropic.request import (
    AnthropicMessage,
    ContentBlock,
    CountRequest,
    ResultBlock,
)
from omlx_server.api.http.json_body import StrictModel
from omlx_server.errors import BadRequest
from omlx_server.images.source import url_of_image_block
from omlx_server.text.templates.messages import without_billing

Message = dict[str, Any]
Part = dict[str, Any]
Content = str | list[Part]
ToolNames = Mapping[str, str]  # by the id of the call


def chat_messages(body: CountRequest) -> list[Message]:
    """Return the chat messages. Raises BadRequest for other blocks than texts and images."""
    tool_names: dict[str, str] = {}
    messages = _system_messages("system", body.system)
    for index, turn in enumerate(body.messages):
        blocks = turn.content if isinstance(turn.content, list) else ()
        if turn.role == "assistant" and any(map(_is_summary, blocks)):
            # Only the system prompt stays; the summary is within this turn.
            messages = _system_messages("system", body.system)
        messages += _turn_messages(index, turn, tool_names)
        tool_names |= _tool_names(turn)
    messages = _join_neighbours(messages)
    if not messages:
        raise BadRequest("messages must not be empty", param="messages")
    # An empty system prompt also replaces the model's default.
    return [{"role": "system", "content": ""}, *messages] if body.system == "" else messages


def image_chars(body: CountRequest) -> int:
    """Return the characters of a request that are images."""
    values: list[Any] = [turn.content for turn in body.messages]
    chars = 0
    while values:
        value = values.pop()
        if isinstance(value, list):
            values += value
        elif isinstance(value, StrictModel | dict):
            fields = dict(value)
            values += [fields.get("content"), fields.get("source")]
            is_image = fields.get("type") == "base64" and isinstance(fields.get("data"), str)
            chars += len(fields["data"]) if is_image else 0
    return chars


def _turn_messages(index: int, turn: AnthropicMessage, names: ToolNames) -> list[Message]:
    path = f"messages.{index}.content"
    if turn.role == "system":
        return _system_messages(path, turn.content)
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    if turn.role == "user":
        return _user_messages(path, turn.content, names)
    return _assistant_messages(path, turn.content)


def _system_messages(path: str, content: str | list[ContentBlock] | None) -> list[Message]:
    if content is None:
        return []
    blocks = [ContentBlock(type="text", text=content)] if isinstance(content, str) else content
    texts = [_text_of_block(f"{path}.{index}", block) for index, block in enumerate(blocks)]
    text = _join_texts(without_billing(texts))
    return [{"role": "system", "content": text}] if text else []


def _user_messages(path: str, blocks: Sequence[ContentBlock], names: ToolNames) -> list[Message]:
    if not blocks:
        raise BadRequest("content must not be empty", param=path)
    results, pieces = list[Message](), list[str | Part]()
    for index, block in enumerate(blocks):
        place = f"{path}.{index}"
        if block.type == "tool_result":
            results.append(_tool_message(place, block, names))
        else:
            pieces += _pieces_of_block(place, block)
    return [*results, {"role": "user", "content": _content_of(pieces)}] if pieces else results


def _tool_message(path: str, block: ContentBlock, names: ToolNames) -> Message:
    if block.tool_use_id is None:
        raise BadRequest("a tool_result needs tool_use_id", param=f"{path}.tool_use_id")
    content = _content_of(_pieces_within(f"{path}.content", block.content))
    if block.is_error and isinstance(content, str):
        content = f"Error: {content}"
    elif block.is_error:
        content = [{"type": "text", "text": "Error: "}, *content]
    name = names.get(block.tool_use_id)
    message = {"role": "tool", "tool_call_id": call_id(block.tool_use_id), "content": content}
    return message if name is None else {**message, "name": name}


def _pieces_within(path: str, content: object) -> list[str | Part]:
    """Return the texts and image parts of a tool's result or of a document."""
    if content is None or isinstance(content, str):
        return [content or ""]
    if not isinstance(content, list):
        raise BadRequest("content must be a string or a list of blocks", param=path)
    try:
        blocks = [ResultBlock.model_validate(block) for block in content]
    except ValidationError:
        raise BadRequest("a block must be an object with a type", param=path) from None
    pieces: list[str | Part] = []
    for index, block in enumerate(blocks):
        pieces += _pieces_of_block(f"{path}.{index}", block)
    return pieces


def _assistant_messages(path: str, blocks: Sequence[ContentBlock]) -> list[Message]:
    """Return the messages of an assistant turn. Texts are joined as the model wrote them."""
    messages, texts, reasoning, calls = list[Message](), list[str](), list[str](), list[Message]()
    anthropic_calls: dict[str | None, Message] = {}
    for index, block in enumerate(blocks):
        place = f"{path}.{index}"
        if block.type == "tool_use":
            calls.append(_tool_call(place, block))
        elif block.type in ("server_tool_use", "mcp_tool_use"):
            anthropic_calls[block.id] = _tool_call(place, block)
        elif block.type.endswith("_tool_result"):
            # Its call ends one message, and what the model says of the result begins the next.
            call = anthropic_calls.get(block.tool_use_id) or _call_of_result(block)
            messages.append(_assistant_message("".join(texts), "".join(reasoning), [call]))
            messages.append(_message_of_result(block, call))
            texts, reasoning = [], []
        elif _is_summary(block):
            messages, texts = [{"role": "user", "content": block.content}], []
            reasoning, calls = [], []
        elif block.type == "thinking":
            reasoning.append(block.thinking or "")
        elif block.type not in _IGNORED_TYPES:
            texts.append(_text_of_block(place, block))
    if messages and not (texts or reasoning or calls):
        return messages
    return [*messages, _assistant_message("".join(texts), "".join(reasoning), calls)]


# Encrypted thoughts, a failed summary, and the place where another model continued.
_IGNORED_TYPES = ("redacted_thinking", "compaction", "fallback")


def _is_summary(block: ContentBlock) -> bool:
    """Return whether a block replaces all before it; a failed summary has no text."""
    return block.type == "compaction" and isinstance(block.content, str) and bool(block.content)


def _call_of_result(block: ContentBlock) -> Message:
    """Return the call that a result answers, where the turn does not hold it."""
    name = block.type.removesuffix("_tool_result")
    function = {"name": name, "arguments": "{}"}
    return {"id": call_id(block.tool_use_id or ""), "type": "function", "function": function}


def _message_of_result(block: ContentBlock, call: Message) -> Message:
    """Return the message with the result of a tool that Anthropic ran."""
    content = block.content
    if not isinstance(content, str):
        readable = json.loads(json.dumps(content), object_hook=_without_sealed)
        content = json.dumps(readable, ensure_ascii=False)
    id, name = call_id(block.tool_use_id or ""), call["function"]["name"]
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


def _without_sealed(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what only Anthropic or a program can read."""
    is_base64 = fields.get("type") == "base64"
    sealed = {k for k in fields if k.startswith("encrypted_") or (is_base64 and k == "data")}
    return {name: value for name, value in fields.items() if name not in sealed}


def _tool_call(path: str, block: ContentBlock) -> dict[str, Any]:
    if block.id is None or block.name is None or block.input is None:
        raise BadRequest("a tool_use needs id, name and input", param=path)
    arguments = json.dumps(block.input, ensure_ascii=False)
    function = {"name": block.name, "arguments": arguments}
    return {"id": call_id(block.id), "type": "function", "function": function}


def _text_of_block(path: str, block: ResultBlock) -> str:
    if block.type == "text" and block.text is not None:
        return block.text
    if block.type == "tool_reference" and block.tool_name is not None:
        return block.tool_name
    if block.type in ("text", "tool_reference"):
        raise BadRequest("a text block needs its text", param=path)
    if block.type == "image":
        raise BadRequest("only turns of the user may hold images", param=path)
    raise BadRequest("messages may hold text, images and documents of text only", param=path)


def _pieces_of_block(path: str, block: ResultBlock) -> list[str | Part]:
    """Return a block as texts and image parts."""
    if block.type in ("document", "search_result"):
        return ["<document>", *_pieces_of_document(path, block), "</document>"]
    if block.type != "image":
        return [_text_of_block(path, block)]
    url = url_of_image_block(block.model_dump(exclude_none=True), param=path)
    return [{"type": "image_url", "image_url": url}]


def _pieces_of_document(path: str, block: ResultBlock) -> list[str | Part]:
    source, about = block.source, [block.title or "", block.context or ""]
    if isinstance(source, str):
        return [*about, source, *_pieces_within(f"{path}.content", block.content)]
    if source is not None and source.type == "text" and source.data is not None:
        return [*about, source.data]
    if source is not None and source.type == "content":
        return [*about, *_pieces_within(f"{path}.source.content", source.content)]
    problem = "a document must be given as text: no PDF, URL or file can be read here"
    raise BadRequest(problem, param=f"{path}.source")


def _content_of(pieces: Iterable[str | Part]) -> Content:
    """Return one text, or parts with images; line breaks go between texts."""
    parts: list[Part] = []
    for are_texts, group in groupby(pieces, lambda piece: isinstance(piece, str)):
        same: list[Any] = list(group)
        parts += [{"type": "text", "text": _join_texts(same)}] if are_texts else same
    if any(part["type"] != "text" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _tool_names(turn: AnthropicMessage) -> dict[str, str]:
    """Return the names of called tools by call id; some templates show them with results."""
    blocks = turn.content if isinstance(turn.content, list) else ()
    calls = [block for block in blocks if block.type == "tool_use"]
    return {call.id: call.name for call in calls if call.id and call.name}


def _join_texts(texts: Iterable[str]) -> str:
    """Join texts, with a line break where neither has white space there."""
    pieces: list[str] = []
    for text in filter(None, texts):
        if pieces and not (pieces[-1][-1].isspace() or text[0].isspace()):
            pieces.append("\n")
        pieces.append(text)
    return "".join(pieces)


def _join_neighbours(messages: Iterable[Message]) -> list[Message]:
    """Join neighbouring messages of one role, except tool results."""
    joined: list[Message] = []
    for role, group in groupby(messages, itemgetter("role")):
        same = list(group)
        joined += same if role == "tool" or len(same) == 1 else [_join_messages(role, same)]
    return joined


def _join_messages(role: str, same: Sequence[Message]) -> Message:
    contents = [message["content"] for message in same]
    if role != "assistant":
        pieces: list[str | Part] = []
        for content in contents:
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            pieces += [part["text"] if part["type"] == "text" else part for part in parts]
        return {"role": role, "content": _content_of(pieces)}
    reasoning = "".join(message.get("reasoning_content", "") for message in same)
    calls = [call for message in same for call in message.get("tool_calls", ())]
    return _assistant_message("".join(contents), reasoning, calls)


def tool_use_id(call_id: str) -> str:
    return "toolu_" + call_id.removeprefix("call_")


def call_id(tool_use_id: str) -> str:
    return tool_use_id.removeprefix("toolu_") or tool_use_id


def _assistant_message(text: str, reasoning: str, calls: Sequence[Message]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    return {**message, "tool_calls": calls} if calls else message
