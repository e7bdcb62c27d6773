"""What requests of Ollama's API may hold, field by field. Types are strict; unknown fields and
unknown options are ignored, as Ollama does."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from omlx_server.api.chat.request import FunctionDefinition
from omlx_server.api.chat.sampling import EngineFields, Stop, TokenFields
from omlx_server.api.http.json_body import StrictModel
from omlx_server.api.http.texts import JsonObject, Text

KeepAlive = (
    Annotated[float, Field(ge=-1e12, le=1e12)] | Annotated[str, StringConstraints(max_length=64)]
)
"""Seconds, or a duration such as "5m"; negative for any time."""
Images = Annotated[list[Text], Field(max_length=1000)]
"""Each as base64."""
Format = Literal["", "json"] | JsonObject
"""JSON of any form, or a JSON schema; "" for free text."""
Level = Literal["low", "medium", "high", "max"]
_Penalty = Annotated[float, Field(ge=-2, le=2)]


class Options(TokenFields):
    """How an answer is sampled. `num_predict`: the most tokens of it; none where it is not
    positive. `num_ctx` changes nothing: every conversation may use the model's whole context.
    `repeat_last_n` 0 switches the penalty off; else it covers the whole context."""

    num_ctx: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    num_predict: Annotated[int, Field(ge=-(1 << 31), le=1 << 31)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=32)] | None = None


class GivenFunction(StrictModel):
    name: str
    arguments: dict[Text, Any] | None = None


class GivenCall(StrictModel):
    """A call that the assistant made in an earlier turn."""

    id: str | None = None
    function: GivenFunction


class GivenMessage(StrictModel):
    """One turn. A result of a tool has the name of the tool in `tool_name`, the id of the call in
    `tool_call_id`, or neither: then it belongs to the first call without a result."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Text | None = None
    thinking: Text | None = None
    images: Images | None = None
    tool_calls: list[GivenCall] | None = None
    tool_name: Annotated[str, Field(max_length=256)] | None = None
    tool_call_id: str | None = None


class GivenTool(StrictModel):
    """A function that the model may call."""

    type: str | None = None
    function: FunctionDefinition


class WrittenRequest(EngineFields):
    """The fields that /api/chat and /api/generate have in common. `truncate`: whether the oldest
    messages are left out of a conversation that is too long; without it `context.overflow` says
    so. `cache_salt` and `priority` are this server's own."""

    stream: bool | None = None
    format: Format | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None
    think: bool | Level | None = None
    truncate: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class OllamaChatRequest(WrittenRequest):
    """The body of POST /api/chat. Without messages the model is loaded, or with a `keep_alive` of 0
    unloaded."""

    messages: Annotated[list[GivenMessage], Field(max_length=10_000)] | None = None
    tools: Annotated[list[GivenTool], Field(max_length=1000)] | None = None


class GenerateRequest(WrittenRequest):
    """The body of POST /api/generate. Without a prompt the model is loaded, or with a `keep_alive`
    of 0 unloaded. With `raw`, and with a `suffix`, the prompt is no message: no chat template is
    applied to it."""

    prompt: Text | None = None
    suffix: Text | None = None
    system: Text | None = None
    raw: bool | None = None
    images: Images | None = None
    # Refused when they ask for something; see prompt.py.
    template: Any = None
    context: Any = None


class EmbedRequest(StrictModel):
    """The body of POST /api/embed. With `truncate` false an input that is too long is refused."""

    model: Annotated[str, StringConstraints(min_length=1)]
    input: Text | Annotated[list[Text], Field(max_length=2048)]
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class EmbeddingsRequest(StrictModel):
    """The body of POST /api/embeddings, the older route for one text."""

    model: Annotated[str, StringConstraints(min_length=1)]
    prompt: Text | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class ShowRequest(StrictModel):
    """The body of POST /api/show. `name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None


class PullRequest(ShowRequest):
    """The body of POST /api/pull."""

    stream: bool | None = None
