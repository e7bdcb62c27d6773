"""What a chat completion request may hold, field by field. Strict; unknown fields are ignored.

A field that would change the answer and that this version does not honour is refused, never
ignored: see `UNSUPPORTED`. Other APIs for conversations are translated into this one.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from omlx_server.api.chat.sampling import MostTokens, SamplingFields
from omlx_server.api.http.json_body import StrictModel
from omlx_server.api.http.texts import JsonObject, Text
from omlx_server.core.request import Effort

Role = Literal["system", "developer", "user", "assistant", "tool"]
ImageDetail = Literal["auto", "low", "high", "original"]
FunctionName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^\S+$")]

# Fields that change an answer, with what to say about each.
UNSUPPORTED = {
    "functions": "functions are no longer part of the API; use tools",
    "audio": "this model makes text only",
    "chat_template": "a chat template in a request is refused; the model's own is used",
    "repetition_context_size": "the repetition penalty always covers the whole context",
    "prompt_logprobs": "use /v1/completions with echo and logprobs",
}


class ImageUrl(StrictModel):
    """A data URL. With `detail` "low" the model looks less closely, and takes fewer tokens."""

    url: Text
    detail: ImageDetail | None = None


class Part(StrictModel):
    """A piece of a message's content: of type text, or image_url in messages of user and tool."""

    type: str
    text: Text | None = None
    image_url: Text | ImageUrl | None = None


class _Kept(StrictModel):
    """Fields that are not known here are kept for the chat template."""

    model_config = ConfigDict(extra="allow")


class FunctionDefinition(_Kept):
    """`parameters`: a JSON schema."""

    name: FunctionName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(_Kept):
    """A function that the model may call."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionCall(_Kept):
    """`arguments` is JSON text; an object is taken, too."""

    name: str
    arguments: Text | dict[Text, Any] | None = None


class ToolCall(_Kept):
    """A call that the assistant made in an earlier turn."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class NamedFunction(StrictModel):
    name: str


class NamedChoice(StrictModel):
    """This function, and no other."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(StrictModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(min_length=1, max_length=1000)]


class AllowedChoice(StrictModel):
    """Only some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class Message(StrictModel):
    """One turn. `content` may be absent only where an assistant called tools."""

    role: Role
    content: Text | list[Part] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None


class ChatRequest(SamplingFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: MostTokens | None = None
    max_tokens: MostTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Effort | None = None
    thinking_budget: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    context_overflow: Literal["error", "truncate", "rolling"] | None = None
    modalities: list[str] | None = None
    tools: Annotated[list[Tool], Field(max_length=1000)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    # Refused when they ask for something; see UNSUPPORTED.
    functions: Any = None
    audio: Any = None
    chat_template: Any = None
    repetition_context_size: Any = None
    prompt_logprobs: Any = None
