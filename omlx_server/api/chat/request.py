"""The fields of a chat completion request, to which other APIs are translated."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, Tag

from omlx_server.api.chat.sampling import MostTokens, SamplingFields
from omlx_server.api.http.json_body import JsonObject, Source, StrictModel, Text
from omlx_server.core.request import Effort

Role = Literal["system", "developer", "user", "assistant", "tool"]
ImageDetail = Literal["auto", "low", "high", "original"]
FunctionName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^\S+$")]

# Fields that would change an answer, with the error message for each. Unknown ones are ignored.
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


class ChatContentPart(StrictModel):
    """A piece of a message's content: of type text, or image_url in messages of user and tool."""

    type: str
    text: Text | None = None
    image_url: Text | ImageUrl | None = None


class _OpenModel(StrictModel):
    """A model that keeps unknown fields, for the chat template."""

    model_config = ConfigDict(extra="allow")


class FunctionDefinition(_OpenModel):
    """`parameters`: a JSON schema."""

    name: FunctionName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ChatFunctionTool(_OpenModel):
    """A function that the model may call."""

    type: Literal["function"]
    function: FunctionDefinition


class ChatTextFormat(StrictModel):
    type: Literal["text"]


class Grammar(StrictModel):
    syntax: Literal["lark", "regex"]
    definition: Source


class GrammarFormat(StrictModel):
    """All of the text matches the grammar."""

    type: Literal["grammar"]
    grammar: Grammar


class CustomDefinition(StrictModel):
    """`format`: what the text of a call is like; any by default."""

    name: FunctionName
    description: Text | None = None
    format: Annotated[ChatTextFormat | GrammarFormat, Field(discriminator="type")] | None = None


class ChatCustomTool(StrictModel):
    """A tool that is called with a text instead of JSON."""

    type: Literal["custom"]
    custom: CustomDefinition


Tool = Annotated[ChatFunctionTool | ChatCustomTool, Field(discriminator="type")]


class FunctionCall(_OpenModel):
    """`arguments` is JSON text; an object is taken, too."""

    name: str
    arguments: Text | dict[Text, Any] | None = None


class ChatToolCall(_OpenModel):
    """A call of a function that the assistant made in an earlier turn."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class CustomInput(StrictModel):
    name: str
    input: Text


class MadeCustomCall(StrictModel):
    """A call of a custom tool that the assistant made in an earlier turn."""

    id: str | None = None
    type: Literal["custom"]
    custom: CustomInput


def _call_tag(call: Any) -> str:
    return "custom" if isinstance(call, Mapping) and call.get("type") == "custom" else "function"


ToolCall = Annotated[
    Annotated[ChatToolCall, Tag("function")] | Annotated[MadeCustomCall, Tag("custom")],
    Discriminator(_call_tag),
]


class ChatNamedTool(StrictModel):
    name: str


class NamedFunction(StrictModel):
    """This function, and no other."""

    type: Literal["function"]
    function: ChatNamedTool

    @property
    def name(self) -> str:
        return self.function.name


class NamedCustom(StrictModel):
    """This custom tool, and no other."""

    type: Literal["custom"]
    custom: ChatNamedTool

    @property
    def name(self) -> str:
        return self.custom.name


NamedChoice = Annotated[NamedFunction | NamedCustom, Field(discriminator="type")]


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
    content: Text | list[ChatContentPart] | None = None
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
    tool_choice: (
        Literal["none", "auto", "required"] | NamedFunction | NamedCustom | AllowedChoice | None
    ) = None
    parallel_tool_calls: bool | None = None
    # Refused when they ask for something; see UNSUPPORTED.
    functions: Any = None
    audio: Any = None
    chat_template: Any = None
    repetition_context_size: Any = None
    prompt_logprobs: Any = None

    @property
    def custom_names(self) -> frozenset[str]:
        tools = self.tools or ()
        return frozenset(tool.custom.name for tool in tools if isinstance(tool, ChatCustomTool))
