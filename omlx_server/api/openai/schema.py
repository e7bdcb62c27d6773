"""What a chat completion request may hold, field by field. Strict; unknown fields are ignored.

A field that would change the answer and that this version does not honour is refused, never
ignored: see `UNSUPPORTED`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from omlx_server.api.body import StrictModel
from omlx_server.api.openai.sampling import SamplingFields

Role = Literal["system", "developer", "user", "assistant", "tool"]

# Fields that change an answer, with what to say about each.
UNSUPPORTED = {
    "tools": "tool calling is not supported by this version",
    "functions": "tool calling is not supported by this version",
    "response_format": "only response_format {'type': 'text'} is supported by this version",
    "structured_outputs": "structured output is not supported by this version",
    "guided_json": "structured output is not supported by this version",
    "guided_regex": "structured output is not supported by this version",
    "guided_choice": "structured output is not supported by this version",
    "guided_grammar": "structured output is not supported by this version",
    "grammar": "structured output is not supported by this version",
    "json_schema": "structured output is not supported by this version",
    "bad_words": "bad_words is not supported by this version; logit_bias can ban tokens",
    "audio": "this model makes text only",
    "chat_template": "a chat template in a request is refused; the model's own is used",
    "repetition_context_size": "the repetition penalty always covers the whole context",
}


class Part(StrictModel):
    """A piece of a message's content. Only text reaches a text model."""

    type: str
    text: str | None = None


class Message(StrictModel):
    """One turn. `content` may be absent only where an assistant called tools."""

    role: Role
    content: str | list[Part] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatRequest(SamplingFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: list[str] | None = None
    tool_choice: Any = None
    # Refused when they ask for something; see UNSUPPORTED.
    tools: Any = None
    functions: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    grammar: Any = None
    json_schema: Any = None
    bad_words: Any = None
    audio: Any = None
    chat_template: Any = None
    repetition_context_size: Any = None
