"""The fields of a Messages request. Strict; unknown ones, such as `cache_control`, are ignored."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from omlx_server.api.chat.sampling import AdapterName, PresetName, SharedFields, Stop
from omlx_server.api.http.json_body import JsonObject, StrictModel, Text

Effort = Literal["low", "medium", "high", "xhigh", "max"]


class ContentSource(StrictModel):
    """An image as base64 in `data`, or a document as text in `data` or as blocks in `content`. A
    `url` may be a data URL only."""

    type: str
    media_type: str | None = None
    data: Text | None = None
    url: Text | None = None
    content: Any = None


class ResultBlock(StrictModel):
    """A piece of what a tool gave. `source`: a `ContentSource`, or a search result's."""

    type: str
    text: Text | None = None
    tool_name: str | None = None
    title: Text | None = None
    context: Text | None = None
    source: ContentSource | Text | None = None
    content: Any = None


class ContentBlock(ResultBlock):
    """A piece of a message. Which fields it needs depends on its type: see turns.py."""

    thinking: Text | None = None
    id: str | None = None
    name: str | None = None
    input: dict[Text, Any] | None = None
    tool_use_id: str | None = None
    is_error: bool | None = None


class AnthropicMessage(StrictModel):
    role: Literal["user", "assistant", "system"]
    content: Text | list[ContentBlock]


class Tool(StrictModel):
    """A client's tool. `type`, other than "custom", names one that Anthropic runs or defines."""

    type: str | None = None
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    description: Text | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None

    @property
    def custom(self) -> bool:
        return self.type in (None, "custom")


class AnthropicToolChoice(StrictModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingOptions(StrictModel):
    """`display` is not known here: what the model thinks is always shown."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None


class OutputFormat(StrictModel):
    type: Literal["json_schema"]
    json_schema: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(StrictModel):
    effort: Effort | None = None
    format: OutputFormat | None = None


class CountRequest(StrictModel):
    """The body of POST /v1/messages/count_tokens: all that makes a prompt."""

    model: Annotated[str, StringConstraints(min_length=1)]
    preset: PresetName | None = None
    adapter: AdapterName | None = None
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=10_000)]
    system: Text | list[ContentBlock] | None = None
    tools: Annotated[list[Tool], Field(max_length=10_000)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: JsonObject | None = None


class MessagesRequest(CountRequest, SharedFields):
    """The body of POST /v1/messages. `min_p`, `seed`, `ignore_eos`, `speculation`, `adapter`,
    `preset`, `cache_salt` and `priority` are this server's own."""

    max_tokens: Annotated[int, Field(ge=1, le=1 << 31)]
    stop_sequences: Annotated[list[Stop], Field(max_length=32)] | None = None
