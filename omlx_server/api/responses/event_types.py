"""The types of a streamed response's events; the OpenAPI document is made from them."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from omlx_server.api.openai.answers import TokenLogprob
from omlx_server.api.responses.answers import OutputItem, OutputText, ReasoningText, Response


class _Numbered(TypedDict):
    """Numbers count from 0, without gaps."""

    sequence_number: int


ResponseEventType = Literal[
    "response.created",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]


class ResponseEvent(_Numbered):
    """The response in its current state. The last three types end the stream."""

    type: ResponseEventType
    response: Response


class ItemEvent(_Numbered):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class InItem(TypedDict):
    item_id: str
    output_index: int


class InPart(InItem):
    content_index: int


class PartEvent(InPart, _Numbered):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Annotated[OutputText | ReasoningText, Field(discriminator="type")]


class OutputTextDelta(InPart, _Numbered):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]


class OutputTextDone(InPart, _Numbered):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ReasoningTextDelta(InPart, _Numbered):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningTextDone(InPart, _Numbered):
    type: Literal["response.reasoning_text.done"]
    text: str


class CallDelta(InItem, _Numbered):
    type: Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
    delta: str


class ArgumentsDone(InItem, _Numbered):
    type: Literal["response.function_call_arguments.done"]
    arguments: str


class InputDone(InItem, _Numbered):
    type: Literal["response.custom_tool_call_input.done"]
    input: str


class Problem(TypedDict):
    code: str | None
    message: str
    param: str | None


class ErrorPayload(Problem):
    type: str


class ResponseErrorEvent(Problem, _Numbered):
    """An error ends the answer; `response.failed` follows. `error` repeats the fields in the form
    of Open Responses."""

    type: Literal["error"]
    error: ErrorPayload


AnyResponseEvent = Annotated[
    ResponseEvent
    | ItemEvent
    | PartEvent
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | CallDelta
    | ArgumentsDone
    | InputDone
    | ResponseErrorEvent,
    Field(discriminator="type"),
]
