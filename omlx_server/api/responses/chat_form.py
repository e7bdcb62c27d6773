"""Turns a request for a response into a chat request. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.sampling import SamplingFields
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.responses import schema
from omlx_server.api.responses.answers import InputItem
from omlx_server.api.responses.items.messages import chat_messages, join_contents
from omlx_server.api.responses.tool_names import PromptTool, ToolNames
from omlx_server.errors import BadRequest, OmlxError

# The sampling fields that both requests have; `n` and `stream_options` have no meaning here.
_SHARED_SAMPLING_FIELDS = frozenset(SamplingFields.model_fields) - {"n", "stream_options"}
# The overflow policy for each `truncation`: with "auto", OpenAI drops items from the beginning.
_OVERFLOW_POLICIES = {"auto": "rolling", "disabled": "error"}
# Fields of a chat request, and their names in a request for a response.
_CLIENT_PARAMS = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}

_MAX_SUMMARY_TOKENS = 2048
_MIN_SUMMARY_TOKENS = 128
_CHARACTERS_PER_TOKEN = 4  # about
_SUMMARY_PROMPT = (
    "Sum up this conversation for somebody who goes on with it and sees nothing of it but the "
    "user's own messages: what is wanted, what was decided and found out, what was done and what "
    "is left to do, with names, numbers and paths as they are. Write the summary and nothing else."
)


def prompt_request(
    body: schema.PromptFields, model: str, items: Sequence[InputItem]
) -> ChatRequest:
    """Return a chat request with the fields that make the prompt. `items`: the whole conversation.
    Raises BadRequest where no such chat is possible."""
    names = ToolNames(body.tools or ())
    return _validate_chat_request({"model": model, **_prompt_fields(body, items, names)})


def compaction_request(
    body: schema.CompactRequest, items: Sequence[InputItem], model: ServedModel
) -> ChatRequest:
    """Return the chat request for a summary. Its prompt begins as the conversation's, tools
    included, for the prefix cache. Raises as `prompt_request`."""
    fields = _prompt_fields(body, items, ToolNames(body.tools or ()))
    messages = [*fields["messages"]]
    last = messages[-1]
    if last["role"] == "user":
        messages[-1] = {**last, "content": join_contents([last["content"], _SUMMARY_PROMPT])}
    else:
        messages.append({"role": "user", "content": _SUMMARY_PROMPT})
    fields.pop("response_format", None)
    fields |= {
        "model": body.model,
        "messages": messages,
        "max_completion_tokens": _max_summary_tokens(messages, model.context_length),
        "context_overflow": "rolling",
        "reasoning_effort": "none",
        "temperature": 0.0,
        "stop": [],
        "adapter": body.adapter,
        "cache_salt": body.cache_salt,
        "priority": body.priority,
    }
    if "tools" in fields:
        fields["tool_choice"] = "none"
    return _validate_chat_request(fields)


def _max_summary_tokens(messages: Sequence[Mapping[str, Any]], context_length: int) -> int:
    """The conversation's length within bounds, at most a quarter of the context."""
    conversation_tokens = sum(map(_count_characters, messages)) // _CHARACTERS_PER_TOKEN
    longest = min(_MAX_SUMMARY_TOKENS, context_length // 4)
    return max(1, min(longest, max(_MIN_SUMMARY_TOKENS, conversation_tokens)))


def chat_request(
    body: schema.ResponsesRequest, items: Sequence[InputItem], names: ToolNames
) -> ChatRequest:
    """Raises as `prompt_request`."""
    fields: dict[str, Any] = {
        **body.model_dump(include=set(_SHARED_SAMPLING_FIELDS)),
        **_prompt_fields(body, items, names),
        "max_completion_tokens": body.max_output_tokens,
        "context_overflow": body.truncation and _OVERFLOW_POLICIES[body.truncation],
    }
    if body.with_logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return _validate_chat_request(fields)


@contextmanager
def renamed_params() -> Iterator[None]:
    """Rename `param` in errors from the chat request's field to the client's own."""
    try:
        yield
    except OmlxError as error:
        error.param = _client_param(error.param)
        raise


def _client_param(name: str | None) -> str | None:
    return name and _CLIENT_PARAMS.get(name.partition(".")[0], name)


def _validate_chat_request(fields: dict[str, Any]) -> ChatRequest:
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = _client_param(str(problem["loc"][0])) if problem["loc"] else None
        raise BadRequest(f"{param or 'body'}: {problem['msg']}", param=param) from None


def _count_characters(message: Mapping[str, Any]) -> int:
    content = message["content"]
    if isinstance(content, str):
        return len(content)
    return sum(len(part.get("text", "")) for part in content)


def _prompt_fields(
    body: schema.PromptFields, items: Sequence[InputItem], names: ToolNames
) -> dict[str, Any]:
    messages = chat_messages(body.instructions, items, names)
    if not messages:
        raise BadRequest("input holds nothing that this model can read", param="input")
    if body.instructions == "":  # empty instructions still replace the template's default ones
        messages = [{"role": "system", "content": ""}, *messages]
    fields: dict[str, Any] = {
        "messages": messages,
        **_tool_fields(body, names),
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = _response_format(body.text.format)
    return fields


def _tool_fields(body: schema.PromptFields, names: ToolNames) -> dict[str, Any]:
    """A choice that needs a tool is passed on without any: the chat refuses it."""
    choice = _chat_tool_choice(body.tool_choice, names)
    if not names.tools:
        return {} if choice in ("auto", "none") else {"tool_choice": choice}
    tools = [_chat_tool(prompt_tool) for prompt_tool in names.tools]
    parallel = body.parallel_tool_calls
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}


def _chat_tool(prompt_tool: PromptTool) -> dict[str, Any]:
    tool = prompt_tool.tool
    fields = tool.model_dump(exclude={"type", "format"}, exclude_none=True)
    fields["name"] = prompt_tool.shown_name
    if prompt_tool.namespace_description:
        about = f"About {prompt_tool.namespace}: {prompt_tool.namespace_description}"
        fields["description"] = "\n\n".join(filter(None, (about, tool.description)))
    if isinstance(tool, schema.ResponsesFunctionTool):
        return {"type": "function", "function": fields}
    if isinstance(tool.format, schema.GrammarInput):
        grammar = tool.format.model_dump(exclude={"type"})
        fields["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": fields}


def _chat_tool_choice(
    choice: str | schema.ResponsesToolChoice | None, names: ToolNames
) -> str | dict[str, Any]:
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    if choice.type == "allowed_tools":
        return _allowed_choice(choice, names)
    chosen = names.chosen_names(choice) if choice.type in ("function", "custom") else []
    if chosen:
        return _function_choice(chosen[0])
    raise BadRequest("tool_choice can name a function or a custom tool", param="tool_choice")


def _allowed_choice(choice: schema.ResponsesToolChoice, names: ToolNames) -> str | dict[str, Any]:
    chosen = [name for tool in choice.tools or () for name in names.chosen_names(tool)]
    mode = choice.mode or "auto"
    if not chosen:
        return "none" if mode == "auto" else mode
    tools = [_function_choice(name) for name in chosen]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _function_choice(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _response_format(text_format: schema.ResponsesTextFormat) -> dict[str, Any]:
    if text_format.type != "json_schema":
        return {"type": text_format.type}
    if text_format.name is None or text_format.schema_ is None:
        raise BadRequest("a json_schema needs name and schema", param="text.format")
    fields = text_format.model_dump(exclude={"type"}, by_alias=True, exclude_none=True)
    return {"type": "json_schema", "json_schema": fields}
