"""What each answer and each event of the published APIs is held to: a type of the official package
and a schema of the document. Each function raises where something is missing, of a wrong type, or
unknown."""

import base64
import struct
from typing import Any

from anthropic.types import (
    ErrorResponse,
    Message,
    MessageTokensCount,
    ModelInfo,
    RawMessageStreamEvent,
)
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import (
    CompactedResponse,
    Response,
    ResponseInputMessageItem,
    ResponseItemList,
    ResponseStreamEvent,
)
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.shared import ErrorObject

from tests.api.published.documents import ANTHROPIC, OPEN_RESPONSES, OPENAI, fits
from tests.api.published.packages import judged

Json = dict[str, Any]
PING = {"type": "ping"}

# Anthropic's documentation of errors has it for 413; the schema and the package do not.
_TOO_LARGE = "request_too_large"
# OpenAI's name of such an event, and its name in the document of Open Responses.
_RENAMED = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


# -- OpenAI's -------------------------------------------------------------------------------------


def chat(data: Json) -> Any:
    fits(_without_custom(data, "message"), OPENAI, "CreateChatCompletionResponse")
    return judged(ChatCompletion, data)


def chat_chunk(data: Json) -> Any:
    """Neither the document nor the package has the type of a custom call in a chunk, which OpenAI
    sends."""
    known = _without_custom(data, "delta")
    fits(_ended(known), OPENAI, "CreateChatCompletionStreamResponse")
    return judged(ChatCompletionChunk, known)


def _without_custom(data: Json, field: str) -> Json:
    """A chat or a chunk without its custom calls."""
    choices = {"choices": [_function_calls(choice, field) for choice in data.get("choices", ())]}
    return {**data, **choices} if "choices" in data else data


def _function_calls(choice: Json, field: str) -> Json:
    calls = choice.get(field, {}).get("tool_calls", [])
    known = [call for call in calls if "custom" not in call]
    return choice if known == calls else {**choice, field: {**choice[field], "tool_calls": known}}


def completion(data: Json) -> Any:
    """One type stands for whole ones and for chunks, though only the last chunk tells the end."""
    choices = [{**choice, "logprobs": _known(choice["logprobs"])} for choice in data["choices"]]
    ended = _ended({**data, "choices": choices})
    known = {key: value for key, value in ended.items() if value is not None}
    fits(known, OPENAI, "CreateCompletionResponse")
    return judged(Completion, ended)


def _known(logprobs: Json | None) -> Json | None:
    """The first token of an echoed prompt has none: null, which OpenAI sends and clients read."""
    if logprobs is None:
        return None
    chances, others = logprobs["token_logprobs"], logprobs["top_logprobs"]
    assert None not in [*chances[1:], *others[1:]]
    likely = [0.0 if chance is None else chance for chance in chances]
    return {**logprobs, "token_logprobs": likely, "top_logprobs": [one or {} for one in others]}


def _ended(data: Json) -> Json:
    """Of chunks the document says that `finish_reason` may be null, and lists no null for it."""
    choices: list[Json] = data["choices"]
    ended = [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in choices]
    return {**data, "choices": ended}


def embeddings(data: Json) -> Any:
    """What was asked for as base64 the package decodes before anybody sees it."""
    rows = [{**row, "embedding": _numbers(row["embedding"])} for row in data["data"]]
    fits({**data, "data": rows}, OPENAI, "CreateEmbeddingResponse")
    return judged(CreateEmbeddingResponse, {**data, "data": rows})


def _numbers(embedding: list[float] | str) -> list[float]:
    if not isinstance(embedding, str):
        return embedding
    content = base64.b64decode(embedding, validate=True)
    return list(struct.unpack(f"<{len(content) // 4}f", content))


def model(data: Json) -> None:
    fits(data, OPENAI, "Model")
    fits(data, ANTHROPIC, "ModelInfo")
    judged(Model, data)
    judged(ModelInfo, data)


def models(data: Json) -> None:
    fits(data, OPENAI, "ListModelsResponse")
    fits(data, ANTHROPIC, "ListResponse_ModelInfo_")
    for one in data["data"]:
        model(one)


def openai_error(data: Json) -> None:
    fits(data, OPENAI, "ErrorResponse")
    assert set(data) == {"error"}
    judged(ErrorObject, {**data["error"], "code": data["error"]["code"] or ""})


# -- Responses ------------------------------------------------------------------------------------


def response(data: Json) -> Response:
    fits(_known_response(data), OPEN_RESPONSES, "ResponseResource")
    found = judged(Response, data)
    assert isinstance(found, Response)
    return found


def response_event(data: Json) -> Any:
    kind = data["type"]
    told = {**data, "type": _RENAMED.get(kind, kind)}
    if "response" in told:
        told["response"] = _known_response(told["response"])
    if "custom_tool_call" not in (kind[len("response.") :][:16], data.get("item", {}).get("type")):
        fits(told, OPEN_RESPONSES, _event_schema(told["type"]))
    found = judged(ResponseStreamEvent, data)
    assert found.type == kind, "taken for another event"
    return found


def _known_response(data: Json) -> Json:
    """A response without what the document of Open Responses does not know: other tools than
    functions, and the schema of a format, for which it takes null only."""
    functions = [tool for tool in data["tools"] if tool["type"] == "function"]
    items = [item for item in data["output"] if item["type"] != "custom_tool_call"]
    choice = data["tool_choice"]
    if not isinstance(choice, str):
        named = [choice, *choice.get("tools", ())]
        others = {tool["type"] for tool in named} - {"function", "allowed_tools"}
        choice = "auto" if others else choice
    return _without_schema({**data, "tools": functions, "output": items, "tool_choice": choice})


def _without_schema(data: Json) -> Json:
    text = data.get("text") or {}
    wanted = text.get("format") or {}
    if "schema" not in wanted:
        return data
    return {**data, "text": {**text, "format": {**wanted, "schema": None}}}


def _event_schema(kind: str) -> str:
    words = kind.replace(".", "_").split("_")
    return "".join(word.title() for word in words) + "StreamingEvent"


def compaction(data: Json) -> None:
    """The package says that the messages of users come first, and has no type for them."""
    fits(data, OPEN_RESPONSES, "CompactResource")
    *kept, last = data["output"]
    for item in kept:
        judged(ResponseInputMessageItem, item)
    judged(CompactedResponse, {**data, "output": [last]})


def item_list(data: Json) -> ResponseItemList:
    """OpenAI's document is older than most items; that of Open Responses has no custom tools."""
    fits({**data, "data": []}, OPENAI, "ResponseItemList")
    for item in data["data"]:
        if not item["type"].startswith("custom_tool_call"):
            fits(item, OPEN_RESPONSES, "ItemField")
    found = judged(ResponseItemList, data)
    assert isinstance(found, ResponseItemList)
    return found


def input_tokens(data: Json) -> None:
    judged(InputTokenCountResponse, data)


# -- Anthropic's ----------------------------------------------------------------------------------


def message(data: Json) -> Message:
    fits(data, ANTHROPIC, "Message")
    found = judged(Message, data)
    assert isinstance(found, Message)
    return found


def message_event(data: Json) -> Any:
    """But for pings, which nothing is published of but their name."""
    if data == PING:
        return None
    if data["type"] == "error":
        return anthropic_error(data)
    name = "".join(word.title() for word in data["type"].split("_")) + "Event"
    fits(data, ANTHROPIC, name)
    found = judged(RawMessageStreamEvent, data)
    assert type(found).__name__ == f"Raw{name}", "taken for another event"
    return found


def counted(data: Json) -> None:
    fits(data, ANTHROPIC, "CountMessageTokensResponse")
    judged(MessageTokensCount, data)


def anthropic_error(data: Json) -> None:
    if data["error"]["type"] == _TOO_LARGE:
        data = {**data, "error": {**data["error"], "type": "invalid_request_error"}}
    fits(data, ANTHROPIC, "ErrorResponse")
    judged(ErrorResponse, data)
