"""The events of a streamed response, as types: for its description only."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from omlx_server.api.openai.answers import TokenLogprob
from omlx_server.api.responses.answers import OutputItem, OutputText, ReasoningText, Response


class _Numbered(TypedDict):
    """From 0 on, without gaps."""

    sequence_number: int


class ResponseEvent(_Numbered):
    """The response as it is by then. The last three types end the stream."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response


class ItemEvent(_Numbered):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _InItem(_Numbered):
    item_id: str
    output_index: int


class _InPart(_InItem):
    content_index: int


class PartEvent(_InPart):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Annotated[OutputText | ReasoningText, Field(discriminator="type")]


class OutputTextDelta(_InPart):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]


class OutputTextDone(_InPart):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ReasoningTextDelta(_InPart):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningTextDone(_InPart):
    type: Literal["response.reasoning_text.done"]
    text: str


class ArgumentsDelta(_InItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_InItem):
    type: Literal["response.function_call_arguments.done"]
    arguments: str


class ErrorPayload(TypedDict):
    type: str
    code: str | None
    message: str
    param: str | None


class ResponseErrorEvent(_Numbered):
    """It breaks off; `response.failed` follows. `error`: the same in the form of Open Responses."""

    type: Literal["error"]
    code: str | None
    message: str
    param: str | None
    error: ErrorPayload


AnyResponseEvent = Annotated[
    ResponseEvent
    | ItemEvent
    | PartEvent
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | ResponseErrorEvent,
    Field(discriminator="type"),
]
