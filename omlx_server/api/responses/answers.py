"""The types of the Responses API's answers; the OpenAPI document is made from them."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from omlx_server.api.chat.request import ImageDetail
from omlx_server.api.openai.answers import TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class CachedTokens(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class ReasoningTokens(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class InputText(TypedDict):
    type: Literal["input_text"]
    text: str


class InputImage(TypedDict):
    """`image_url` is the data URL of the request."""

    type: Literal["input_image"]
    image_url: str
    detail: ImageDetail


class OutputText(TypedDict):
    """Only texts that this server wrote have `logprobs`."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: NotRequired[list[TokenLogprob]]


InputPart = InputText | InputImage
MessagePart = InputPart | OutputText


class SummaryText(TypedDict):
    type: Literal["summary_text"]
    text: str


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class _Item(TypedDict):
    id: str
    status: ItemStatus


class MessageOfResponse(_Item):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: list[Annotated[MessagePart, Field(discriminator="type")]]


class FunctionCallOfResponse(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: NotRequired[str]
    arguments: str


class CustomCallOfResponse(_Item):
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: NotRequired[str]
    input: str


class CallOutputOfResponse(_Item):
    """`output` is a list if it holds images."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: str | list[Annotated[InputPart, Field(discriminator="type")]]


class ReasoningOfResponse(_Item):
    """`encrypted_content` is there if it was asked for."""

    type: Literal["reasoning"]
    summary: list[SummaryText]
    content: list[ReasoningText]
    encrypted_content: NotRequired[str]


class CompactionOfResponse(TypedDict):
    """Stands for an older part of the conversation; valid for one API key."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


OutputItem = Annotated[
    MessageOfResponse | FunctionCallOfResponse | CustomCallOfResponse | ReasoningOfResponse,
    Field(discriminator="type"),
]
InputItem = Annotated[
    MessageOfResponse
    | FunctionCallOfResponse
    | CustomCallOfResponse
    | CallOutputOfResponse
    | ReasoningOfResponse
    | CompactionOfResponse,
    Field(discriminator="type"),
]


class ResponseFailure(TypedDict):
    code: Literal["server_error", "invalid_prompt", "rate_limit_exceeded"]
    message: str


class WhyIncomplete(TypedDict):
    reason: Literal["max_output_tokens"]


class ReasoningSettings(TypedDict):
    effort: str | None
    summary: str | None


# The field is called `schema` here as on the wire; in the request's pydantic model it is `schema_`.
class UsedTextFormat(TypedDict):
    type: Literal["text", "json_object", "json_schema"]
    name: NotRequired[str]
    schema: NotRequired[dict[str, Any]]
    strict: NotRequired[bool]
    description: NotRequired[str | None]


class TextSettings(TypedDict):
    format: UsedTextFormat
    verbosity: Literal["low", "medium", "high"]


class ChosenTool(TypedDict):
    type: str
    name: NotRequired[str]
    namespace: NotRequired[str]


ToolMode = Literal["none", "auto", "required"]


class UsedToolChoice(ChosenTool):
    mode: NotRequired[Literal["auto", "required"]]
    tools: NotRequired[list[ChosenTool]]


class OfferedFunction(TypedDict):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class FormatOfInput(TypedDict):
    type: Literal["text", "grammar"]
    syntax: NotRequired[Literal["lark", "regex"]]
    definition: NotRequired[str]


class OfferedCustom(TypedDict):
    type: Literal["custom"]
    name: str
    description: str | None
    format: FormatOfInput


class OfferedNamespace(TypedDict):
    type: Literal["namespace"]
    name: str
    description: str
    tools: list[Annotated[OfferedFunction | OfferedCustom, Field(discriminator="type")]]


OfferedTool = Annotated[
    OfferedFunction | OfferedCustom | OfferedNamespace, Field(discriminator="type")
]


class Response(TypedDict):
    """A response, with the values that were in force for it."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseFailure | None
    frequency_penalty: float
    incomplete_details: WhyIncomplete | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: TextSettings
    tool_choice: ToolMode | UsedToolChoice
    tools: list[OfferedTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


class CompactedResponse(TypedDict):
    """The input of the next request: the messages of user and system, then a summary of all else.
    `usage` is that of the summary."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Annotated[MessageOfResponse | CompactionOfResponse, Field(discriminator="type")]]
    usage: ResponseUsage


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


class InputItemList(TypedDict):
    """The ids are empty if there are no items."""

    object: Literal["list"]
    data: list[InputItem]
    first_id: str
    last_id: str
    has_more: bool
