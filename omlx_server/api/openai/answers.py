"""The types of the OpenAI-compatible routes' answers. The code that makes an answer returns them,
and the OpenAPI document is made from them."""

from typing import Annotated, Any, Literal, NotRequired

import orjson
from pydantic import Field, GetPydanticSchema
from typing_extensions import TypedDict

from omlx_server.api.chat.finish import Finish
from omlx_server.api.http.errors import Error


class PromptTokensDetails(TypedDict):
    """`dropped_messages` is there when the conversation outgrew the context."""

    cached_tokens: int
    dropped_messages: NotRequired[int]


class CompletionTokensDetails(TypedDict):
    """Of the tokens that were drafted, as many are in the answer as were `accepted`."""

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
    """`bytes`: those of the token in UTF-8, which may be half a character."""

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
    """`input` is the text of the call."""

    name: str
    input: str


class MessageCustomCall(TypedDict):
    id: str
    type: Literal["custom"]
    custom: CalledCustom


MessageToolCall = Annotated[MessageFunctionCall | MessageCustomCall, Field(discriminator="type")]


class AssistantMessage(TypedDict):
    """`content` is null where there are calls only; `annotations` is always empty. What the model
    thought has two names, because clients read either."""

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
    """What a completion and its chunks have in common."""

    id: str
    created: int
    model: str
    service_tier: Literal["default"]
    system_fingerprint: str


class ChatCompletion(ChatAnswer):
    """`system_fingerprint` names what computed the answer: weights, form of keys and values,
    device, versions."""

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
    """`id` and `type` come with the name. There is either `function` or `custom`."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function", "custom"]]
    function: NotRequired[FunctionDelta]
    custom: NotRequired[CustomDelta]


class ChatDelta(TypedDict, total=False):
    """What is new. `role` comes in the first chunk of a choice; the last one's is empty."""

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
    """`usage` is there when it was asked for: null in all but the last chunk, which has no
    choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[OpenAiUsage | None]


TextFinish = Literal["stop", "length"]


class TextLogprobs(TypedDict):
    """Token by token. The first token of an echoed prompt has none."""

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
    """What a completion and its chunks have in common."""

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
    """Tokens of embeddings and ranking, whose models read text and write none."""

    prompt_tokens: int
    total_tokens: int


Vector = Annotated[orjson.Fragment, GetPydanticSchema(lambda _, handler: handler(list[float]))]
"""A list of numbers, already as the JSON text that goes into the answer."""


class Embedding(TypedDict):
    """`embedding`: numbers, or little-endian float32 as base64 when that was asked for."""

    object: Literal["embedding"]
    index: int
    embedding: Vector | str


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: ReadUsage


class ModelArchitecture(TypedDict):
    """What a model takes and what it gives. `modality` says both in one text, as
    "text+image->text"."""

    modality: str
    input_modalities: list[Literal["text", "image"]]
    output_modalities: list[Literal["text", "embeddings", "rerank"]]


class OpenAiModel(TypedDict):
    """`root`: the full name of the model, or MODEL:ADAPTER; all names of one model have the same.
    `parent`: of a model with an adapter, the model without. `max_model_len`: the tokens of its
    context. Null while it is being loaded. `architecture` has the fields that OpenRouter and
    llama.cpp tell, `default_parameters` OpenRouter's: the sampling values of requests that name
    none, null for a model that does not chat. `presets` are the names that the `preset` of a
    request can be. The fields behind it are Anthropic's."""

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
    """All on one page."""

    object: Literal["list"]
    data: list[OpenAiModel]
    has_more: Literal[False]
    first_id: str | None
    last_id: str | None
