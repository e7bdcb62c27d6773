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


def chat_messages(body: CountRequest) -> list[Message]:
    """Return the chat messages. Raises BadRequest for other blocks than texts and images, and where
    no message is left."""
    names: dict[str, str] = {}
    messages = _system("system", body.system)
    for index, turn in enumerate(body.messages):
        blocks = turn.content if isinstance(turn.content, list) else ()
        if turn.role == "assistant" and any(map(_is_summary, blocks)):
            messages = _system("system", body.system)
        messages += _converted(index, turn, names)
        names |= _tool_names(turn)
    messages = _joined(messages)
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


def _converted(index: int, turn: AnthropicMessage, names: Mapping[str, str]) -> list[Message]:
    path = f"messages.{index}.content"
    if turn.role == "system":
        return _system(path, turn.content)
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    if turn.role == "user":
        return _user(path, turn.content, names)
    return _assistant(path, turn.content)


def _system(path: str, content: str | list[ContentBlock] | None) -> list[Message]:
    if content is None:
        return []
    blocks = [ContentBlock(type="text", text=content)] if isinstance(content, str) else content
    texts = [_text(f"{path}.{index}", block) for index, block in enumerate(blocks)]
    text = _paragraphs(without_billing(texts))
    return [{"role": "system", "content": text}] if text else []


def _user(path: str, blocks: Sequence[ContentBlock], names: Mapping[str, str]) -> list[Message]:
    if not blocks:
        raise BadRequest("content must not be empty", param=path)
    results, pieces = list[Message](), list[str | Part]()
    for index, block in enumerate(blocks):
        place = f"{path}.{index}"
        if block.type == "tool_result":
            results.append(_result(place, block, names))
        else:
            pieces += _shown(place, block)
    return [*results, {"role": "user", "content": _content(pieces)}] if pieces else results


def _result(path: str, block: ContentBlock, names: Mapping[str, str]) -> Message:
    if block.tool_use_id is None:
        raise BadRequest("a tool_result needs tool_use_id", param=f"{path}.tool_use_id")
    content = _content(_inner(f"{path}.content", block.content))
    if block.is_error and isinstance(content, str):
        content = f"Error: {content}"
    elif block.is_error:
        content = [{"type": "text", "text": "Error: "}, *content]
    named = names.get(block.tool_use_id)
    message = {"role": "tool", "tool_call_id": call_id(block.tool_use_id), "content": content}
    return message if named is None else {**message, "name": named}


def _inner(path: str, content: object) -> list[str | Part]:
    if content is None or isinstance(content, str):
        return [content or ""]
    if not isinstance(content, list):
        raise BadRequest("content must be a string or a list of blocks", param=path)
    try:
        blocks = [ResultBlock.model_validate(block) for block in content]
    except ValidationError:
        raise BadRequest("a block must be an object with a type", param=path) from None
    shown = [_shown(f"{path}.{index}", block) for index, block in enumerate(blocks)]
    return [piece for pieces in shown for piece in pieces]


def _assistant(path: str, blocks: Sequence[ContentBlock]) -> list[Message]:
    """Return the messages of an assistant turn. Texts are joined without separators, as the model
    wrote them."""
    messages, texts, reasoning = list[Message](), list[str](), list[str]()
    calls, theirs = list[Message](), dict[str | None, Message]()
    for index, block in enumerate(blocks):
        place = f"{path}.{index}"
        if block.type == "tool_use":
            calls.append(_call(place, block))
        elif block.type in ("server_tool_use", "mcp_tool_use"):
            theirs[block.id] = _call(place, block)
        elif block.type.endswith("_tool_result"):
            call, result = _run(block, theirs)
            messages += [_said("".join(texts), "".join(reasoning), [call]), result]
            texts, reasoning = [], []
        elif _is_summary(block):
            messages, texts = [{"role": "user", "content": block.content}], []
            reasoning, calls = [], []
        elif block.type == "thinking":
            reasoning.append(block.thinking or "")
        elif block.type not in _UNSEEN:
            texts.append(_text(place, block))
    if messages and not (texts or reasoning or calls):
        return messages
    return [*messages, _said("".join(texts), "".join(reasoning), calls)]


# Encrypted thoughts, a failed summary, and the place where another model continued.
_UNSEEN = ("redacted_thinking", "compaction", "fallback")


def _is_summary(block: ContentBlock) -> bool:
    """Return whether a block replaces all before it; a failed summary has no text."""
    return block.type == "compaction" and isinstance(block.content, str) and bool(block.content)


def _run(block: ContentBlock, theirs: Mapping[str | None, Message]) -> tuple[Message, Message]:
    """Return call and result of a tool that Anthropic ran."""
    id, name = call_id(block.tool_use_id or ""), block.type.removesuffix("_tool_result")
    unseen = {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
    call = theirs.get(block.tool_use_id, unseen)
    content = block.content
    if not isinstance(content, str):
        readable = json.loads(json.dumps(content), object_hook=_readable)
        content = json.dumps(readable, ensure_ascii=False)
    result = {"role": "tool", "tool_call_id": id, "name": call["function"]["name"]}
    return call, {**result, "content": content}


def _readable(fields: dict[str, Any]) -> dict[str, Any]:
    sealed = ("data",) if fields.get("type") == "base64" else ()
    return {k: v for k, v in fields.items() if k not in sealed and not k.startswith("encrypted_")}


def _call(path: str, block: ContentBlock) -> dict[str, Any]:
    if block.id is None or block.name is None or block.input is None:
        raise BadRequest("a tool_use needs id, name and input", param=path)
    arguments = json.dumps(block.input, ensure_ascii=False)
    function = {"name": block.name, "arguments": arguments}
    return {"id": call_id(block.id), "type": "function", "function": function}


def _text(path: str, block: ResultBlock) -> str:
    if block.type == "text" and block.text is not None:
        return block.text
    if block.type == "tool_reference" and block.tool_name is not None:
        return block.tool_name
    if block.type in ("text", "tool_reference"):
        raise BadRequest("a text block needs its text", param=path)
    if block.type == "image":
        raise BadRequest("only turns of the user may hold images", param=path)
    raise BadRequest("messages may hold text, images and documents of text only", param=path)


def _shown(path: str, block: ResultBlock) -> list[str | Part]:
    """Return a block as texts and image parts."""
    if block.type in ("document", "search_result"):
        return ["<document>", *_document(path, block), "</document>"]
    if block.type != "image":
        return [_text(path, block)]
    url = url_of_image_block(block.model_dump(exclude_none=True), param=path)
    return [{"type": "image_url", "image_url": url}]


def _document(path: str, block: ResultBlock) -> list[str | Part]:
    source, about = block.source, [block.title or "", block.context or ""]
    if isinstance(source, str):
        return [*about, source, *_inner(f"{path}.content", block.content)]
    if source is not None and source.type == "text" and source.data is not None:
        return [*about, source.data]
    if source is not None and source.type == "content":
        return [*about, *_inner(f"{path}.source.content", source.content)]
    problem = "a document must be given as text: no PDF, URL or file can be read here"
    raise BadRequest(problem, param=f"{path}.source")


def _content(pieces: Iterable[str | Part]) -> Content:
    """Return one text, or parts with images; line breaks go between texts."""
    parts: list[Part] = []
    for is_text, run in groupby(pieces, lambda piece: isinstance(piece, str)):
        same: list[Any] = list(run)
        parts += [{"type": "text", "text": _paragraphs(same)}] if is_text else same
    if any(part["type"] != "text" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _tool_names(turn: AnthropicMessage) -> dict[str, str]:
    """Return the names of called tools by call id; some templates show them with results."""
    blocks = turn.content if isinstance(turn.content, list) else ()
    return {b.id: b.name for b in blocks if b.type == "tool_use" and b.id and b.name}


def _paragraphs(texts: Iterable[str]) -> str:
    """Join texts, with a line break where neither has white space there."""
    pieces: list[str] = []
    for text in filter(None, texts):
        if pieces and not (pieces[-1][-1].isspace() or text[0].isspace()):
            pieces.append("\n")
        pieces.append(text)
    return "".join(pieces)


def _pieces(contents: Iterable[Content]) -> list[str | Part]:
    pieces: list[str | Part] = []
    for content in contents:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        pieces += [part["text"] if part["type"] == "text" else part for part in parts]
    return pieces


def _joined(messages: Iterable[Message]) -> list[Message]:
    """Join neighbouring messages of one role, except tool results."""
    result: list[Message] = []
    for role, run in groupby(messages, itemgetter("role")):
        same = list(run)
        result += same if role == "tool" or len(same) == 1 else [_one(role, same)]
    return result


def _one(role: str, same: Sequence[Message]) -> Message:
    contents = [message["content"] for message in same]
    if role != "assistant":
        return {"role": role, "content": _content(_pieces(contents))}
    reasoning = "".join(message.get("reasoning_content", "") for message in same)
    calls = [call for message in same for call in message.get("tool_calls", ())]
    return _said("".join(contents), reasoning, calls)


def tool_use_id(call_id: str) -> str:
    return "toolu_" + call_id.removeprefix("call_")


def call_id(tool_use_id: str) -> str:
    return tool_use_id.removeprefix("toolu_") or tool_use_id


def _said(text: str, reasoning: str, calls: Sequence[Message]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    return {**message, "tool_calls": calls} if calls else message
