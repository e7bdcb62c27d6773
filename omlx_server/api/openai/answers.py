"""The types of the OpenAI-compatible routes' answers; the OpenAPI document is made from them."""

from typing import Annotated, Any, Literal, NotRequired

import orjson
from pydantic import Field, GetPydanticSchema
from typing_extensions import TypedDict

from omlx_server.api.chat.finish import Finish
from omlx_server.api.http.errors import Error


class PromptTokensDetails(TypedDict):
    """`dropped_messages` is there if the conversation outgrew the context."""

    cached_tokens: int
    dropped_messages: NotRequired[int]


class CompletionTokensDetails(TypedDict):
    """Drafted tokens that are in the answer were `accepted`."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class OpenAiUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class LikelyToken(TypedDict):
    """`bytes`: the token in UTF-8, perhaps half a character."""

    token: str
    logprob: float | None
    bytes: list[int] | None


class TokenLogprob(LikelyToken):
    """The likeliest alternatives come first."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class CalledFunction(TypedDict):
    """`arguments` is JSON text."""

    name: str
    arguments: str


class MessageFunctionCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class CalledCustom(TypedDict):
    name: str
    input: str


class MessageCustomCall(TypedDict):
    id: str
    type: Literal["custom"]
    custom: CalledCustom


MessageToolCall = Annotated[MessageFunctionCall | MessageCustomCall, Field(discriminator="type")]


class AssistantMessage(TypedDict):
    """`content` is null if there are only calls. Reasoning has the two names that clients read."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    tool_calls: NotRequired[list[MessageToolCall]]
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]


class ChatChoice(TypedDict):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatAnswer(TypedDict):
    id: str
    created: int
    model: str
    service_tier: Literal["default"]
    system_fingerprint: str


class ChatCompletion(ChatAnswer):
    """`system_fingerprint` names weights, form of keys and values, device and versions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: OpenAiUsage


class FunctionDelta(TypedDict):
    """`name` comes first; fragments of `arguments` follow."""

    name: NotRequired[str]
    arguments: str


class CustomDelta(TypedDict):
    """`name` comes first; fragments of `input` follow."""

    name: NotRequired[str]
    input: str


class ToolCallDelta(TypedDict):
    """`id` and `type` come with the name, and either `function` or `custom`."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function", "custom"]]
    function: NotRequired[FunctionDelta]
    custom: NotRequired[CustomDelta]


class ChatDelta(TypedDict, total=False):
    """New parts of a choice. `role` comes in its first chunk; its last chunk is empty."""

    role: Literal["assistant"]
    content: str
    tool_calls: list[ToolCallDelta]
    reasoning_content: str
    reasoning: str


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatCompletionChunk(ChatAnswer):
    """`usage` is there if it was asked for: null until the last chunk, which has no choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[OpenAiUsage | None]


TextFinish = Literal["stop", "length"]


class TextLogprobs(TypedDict):
    """The first token of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextPiece(TypedDict):
    index: int
    text: str
    logprobs: TextLogprobs | None


class CompletionChoice(TextPiece):
    finish_reason: TextFinish


class CompletionAnswer(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str


class Completion(CompletionAnswer):
    choices: list[CompletionChoice]
    usage: OpenAiUsage


class CompletionChunkChoice(TextPiece):
    finish_reason: TextFinish | None


class CompletionChunk(CompletionAnswer):
    """`usage` as in the chunks of a chat."""

    choices: list[CompletionChunkChoice]
    usage: NotRequired[OpenAiUsage | None]


ChatEvent = ChatCompletionChunk | Error
CompletionEvent = CompletionChunk | Error


class ReadUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


Vector = Annotated[orjson.Fragment, GetPydanticSchema(lambda _, handler: handler(list[float]))]
"""A list of numbers, already as JSON text."""


class Embedding(TypedDict):
    """`embedding`: numbers, or little-endian float32 as base64 if that was asked for."""

    object: Literal["embedding"]
    index: int
    embedding: Vector | str


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: ReadUsage


class ModelArchitecture(TypedDict):
    """Inputs and outputs of a model; `modality` as "text+image->text"."""

    modality: str
    input_modalities: list[Literal["text", "image"]]
    output_modalities: list[Literal["text", "embeddings", "rerank"]]


class OpenAiModel(TypedDict):
    """A model in the forms of OpenAI, vLLM, OpenRouter, llama.cpp and Anthropic.

    `root`: the model's full name, or MODEL:ADAPTER. `parent`: the model without its adapter.
    `max_model_len`: tokens of its context, null while it loads. `default_parameters`: its sampling
    defaults, and `max_tokens` if the settings limit it; null if it does not chat. `presets`: values
    for a request's `preset`.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    architecture: ModelArchitecture
    presets: list[str]
    default_parameters: dict[str, float] | None
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: None
    deprecated_at: None
    line: None
    retires_at: None


class ModelList(TypedDict):
    """All models on one page."""

    object: Literal["list"]
    data: list[OpenAiModel]
    has_more: Literal[False]
    first_id: str | None
    last_id: str | None
