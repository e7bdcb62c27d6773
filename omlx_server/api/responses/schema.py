"""The fields of a request for a response. Types are strict; unknown fields are ignored.

Tools and items of unknown types are left out, with a warning: agents send them to every server.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from omlx_server.api.chat.request import ImageDetail
from omlx_server.api.chat.sampling import AdapterName, EngineFields, PresetName, SamplingFields
from omlx_server.api.http.json_body import JsonObject, Source, StrictModel, Text, refuse_unsupported
from omlx_server.core.request import Effort

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]

# Unsupported fields that would change an answer, with their error texts.
UNSUPPORTED = {
    "background": "this server answers at once; background is not supported",
    "conversation": "conversations are not kept here; previous_response_id continues a response",
    "prompt": "prompt templates are not kept here; send input and instructions",
}
# Values of `include`.
_INCLUDE_LOGPROBS = "message.output_text.logprobs"
_INCLUDE_SEALED_REASONING = "reasoning.encrypted_content"


class ContentPart(StrictModel):
    """A text, a refusal, or an image (input_image), whose `image_url` is a data URL."""

    type: str
    text: Text | None = None
    refusal: Text | None = None
    image_url: Text | None = None
    file_id: str | None = None
    detail: ImageDetail | None = None


Content = Text | list[ContentPart]


class _GivenItem(StrictModel):
    id: str | None = None


class MessageItem(_GivenItem):
    """`type` may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class CallItem(_GivenItem):
    call_id: str
    name: Name
    namespace: Name | None = None
    arguments: Text


class CustomCallItem(_GivenItem):
    call_id: str
    name: Name
    namespace: Name | None = None
    input: Text


class CallOutputItem(_GivenItem):
    """The result of a function or a custom tool."""

    call_id: str
    output: Content
    type: Literal["function_call_output", "custom_tool_call_output"]


class ReasoningItem(_GivenItem):
    summary: list[ContentPart] | None = None
    content: list[ContentPart] | None = None
    encrypted_content: Text | None = None


class CompactionItem(_GivenItem):
    """Stands for an older part of the conversation."""

    encrypted_content: Text


class ReferenceItem(StrictModel):
    """An item of a stored response."""

    id: str


class OtherItem(StrictModel):
    """An item of a type that is left out."""

    type: str


# Tags are never names of fields, which would appear in the paths of errors.
_ITEM_TAGS = {
    "message": "a message",
    "function_call": "a call",
    "custom_tool_call": "a custom call",
    "function_call_output": "an output",
    "custom_tool_call_output": "an output",
    "reasoning": "a thought",
    "compaction": "a compaction",
    "item_reference": "a reference",
}


def _item_tag(item: Any) -> str:
    """Return the tag of an item. Without a type it is a reference if it has an id and no role, else
    a message."""
    kind = item.get("type") if isinstance(item, Mapping) else None
    if kind is None:
        is_reference = isinstance(item, Mapping) and "id" in item and "role" not in item
        return "a reference" if is_reference else "a message"
    return _ITEM_TAGS.get(kind, "another") if isinstance(kind, str) else "another"


Item = Annotated[
    Annotated[MessageItem, Tag("a message")]
    | Annotated[CallItem, Tag("a call")]
    | Annotated[CustomCallItem, Tag("a custom call")]
    | Annotated[CallOutputItem, Tag("an output")]
    | Annotated[ReasoningItem, Tag("a thought")]
    | Annotated[CompactionItem, Tag("a compaction")]
    | Annotated[ReferenceItem, Tag("a reference")]
    | Annotated[OtherItem, Tag("another")],
    Discriminator(_item_tag),
]


class ResponsesFunctionTool(StrictModel):
    type: Literal["function"]
    name: Name
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class TextInput(StrictModel):
    type: Literal["text"]


class GrammarInput(StrictModel):
    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Source


class ResponsesCustomTool(StrictModel):
    """A tool that is called with a text in a `format`, any text by default."""

    type: Literal["custom"]
    name: Name
    description: Text | None = None
    format: Annotated[TextInput | GrammarInput, Field(discriminator="type")] | None = None


class OtherTool(StrictModel):
    """A tool that is left out."""

    type: str


def _tool_tag(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    return kind if kind in ("function", "custom", "namespace") else "other"


def _tag_in_namespace(tool: Any) -> str:
    tag = _tool_tag(tool)
    return "other" if tag == "namespace" else tag


class NamespaceTool(StrictModel):
    """Functions and custom tools below one name."""

    type: Literal["namespace"]
    name: Name
    description: Text | None = None
    tools: Annotated[
        list[
            Annotated[
                Annotated[ResponsesFunctionTool, Tag("function")]
                | Annotated[ResponsesCustomTool, Tag("custom")]
                | Annotated[OtherTool, Tag("other")],
                Discriminator(_tag_in_namespace),
            ]
        ],
        Field(max_length=1024),
    ]

    @property
    def known_tools(self) -> list[ResponsesFunctionTool | ResponsesCustomTool]:
        return [tool for tool in self.tools if not isinstance(tool, OtherTool)]


KnownTool = ResponsesFunctionTool | ResponsesCustomTool | NamespaceTool
Tool = Annotated[
    Annotated[ResponsesFunctionTool, Tag("function")]
    | Annotated[ResponsesCustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_tool_tag),
]


class ResponsesNamedTool(StrictModel):
    type: str
    name: str | None = None
    namespace: str | None = None


class ResponsesToolChoice(ResponsesNamedTool):
    """One tool by its name, or several (`allowed_tools`)."""

    mode: Literal["auto", "required"] | None = None
    tools: list[ResponsesNamedTool] | None = None


class ReasoningOptions(StrictModel):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None


class ResponsesTextFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None
    description: Source | None = None


class TextConfig(StrictModel):
    format: ResponsesTextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class PromptFields(StrictModel):
    """The fields that make the prompt."""

    input: Text | Annotated[list[Item], Field(max_length=10_000)] | None = None
    instructions: Text | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[Tool], Field(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: JsonObject | None = None
    # Refused if they have a value; see UNSUPPORTED.
    conversation: Any = None
    prompt: Any = None

    @property
    def known_tools(self) -> list[KnownTool]:
        return [tool for tool in self.tools or () if not isinstance(tool, OtherTool)]

    @property
    def unknown_types(self) -> set[str]:
        tools = self.tools or []
        in_namespaces = [tool.tools for tool in tools if isinstance(tool, NamespaceTool)]
        items = self.input if isinstance(self.input, list) else []
        given = chain(tools, *in_namespaces, items)
        return {one.type for one in given if isinstance(one, OtherTool | OtherItem)}

    def check(self) -> None:
        """Raise BadRequest for unsupported fields that would change the answer."""
        refuse_unsupported(self, UNSUPPORTED)


class InputTokensRequest(PromptFields):
    """The body of POST /v1/responses/input_tokens."""

    model: Annotated[str, StringConstraints(min_length=1)] | None = None
    preset: PresetName | None = None
    adapter: AdapterName | None = None


class CompactRequest(PromptFields, EngineFields):
    """The body of POST /v1/responses/compact. Fields for the form of an answer are ignored."""


class ResponsesRequest(PromptFields, SamplingFields):
    """The body of POST /v1/responses, with the sampling fields of chat completions."""

    max_output_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    store: bool | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    background: Any = None

    @property
    def with_logprobs(self) -> bool:
        return _INCLUDE_LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def seals_reasoning(self) -> bool:
        """Whether reasoning items get `encrypted_content`."""
        return _INCLUDE_SEALED_REASONING in (self.include or ())
