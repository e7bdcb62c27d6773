"""The types of the Messages API's answers."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, GetPydanticSchema
from typing_extensions import TypedDict

from omlx_server.api.chat.finish import Finish
from omlx_server.api.http.anthropic_errors import AnthropicError

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an answer, by the stop string `stopped`, or because the context is `full`."""

    finish: Finish
    stopped: str | None = None
    full: bool = False

    def reason(self, *, called: bool) -> StopReason:
        if self.stopped is not None:
            return "stop_sequence"
        if self.finish == "length":
            return "model_context_window_exceeded" if self.full else "max_tokens"
        return "tool_use" if called else "end_turn"


class ThinkingTokens(TypedDict):
    thinking_tokens: int


class CountsOfMessage(TypedDict):
    """Token counts. `input_tokens` were not in the cache; creating a cache costs nothing."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    server_tool_use: None


class CacheCreation(TypedDict):
    ephemeral_1h_input_tokens: int
    ephemeral_5m_input_tokens: int


class MessageUsage(CountsOfMessage):
    cache_creation: CacheCreation
    inference_geo: None
    service_tier: Literal["standard"]


class TextBlock(TypedDict):
    """A text, always without citations."""

    type: Literal["text"]
    text: str
    citations: None


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class DirectCaller(TypedDict):
    type: Literal["direct"]


ToolInput = Annotated[
    dict[str, Any] | orjson.Fragment,
    GetPydanticSchema(lambda _, handler: handler(dict[str, Any])),
]
"""The input of a tool: an object, or the JSON text of an object."""


class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    id: str
    caller: DirectCaller
    name: str
    input: ToolInput


ContentBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class AssistantTurn(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    container: None
    stop_details: None
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class CountedTokens(TypedDict):
    input_tokens: int


class MessageStart(TypedDict):
    type: Literal["message_start"]
    message: AssistantTurn


class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlock


class TextDelta(TypedDict):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    type: Literal["signature_delta"]
    signature: str


class InputJsonDelta(TypedDict):
    """A fragment of the JSON text of a tool's input."""

    type: Literal["input_json_delta"]
    partial_json: str


ContentDelta = Annotated[
    TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta, Field(discriminator="type")
]


class BlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: int
    delta: ContentDelta


class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


class MessageEnd(TypedDict):
    container: None
    stop_details: None
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(TypedDict):
    type: Literal["message_delta"]
    delta: MessageEnd
    usage: CountsOfMessage


class MessageStop(TypedDict):
    type: Literal["message_stop"]


class Ping(TypedDict):
    """Keeps a silent connection alive."""

    type: Literal["ping"]


class ErrorEvent(AnthropicError):
    """The answer failed while it was streamed; no event follows."""


MessageEvent = Annotated[
    MessageStart
    | BlockStart
    | BlockDelta
    | BlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | ErrorEvent,
    Field(discriminator="type"),
]
