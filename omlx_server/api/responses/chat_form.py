"""A request for a response as the request for a chat that means the same. Pure."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.sampling import SamplingFields
from omlx_server.api.models.served import ServedModel
from omlx_server.api.responses.answers import InputItem
from omlx_server.api.responses.items.messages import chat_messages
from omlx_server.api.responses.schema import (
    CompactRequest,
    FunctionTool,
    PromptFields,
    ResponsesRequest,
    TextFormat,
    ToolChoice,
)
from omlx_server.errors import BadRequest, OmlxError

# The others are shared; these mean something else here, or nothing.
_SAMPLING = frozenset(SamplingFields.model_fields) - {"n", "stream_options"}
# By what OpenAI says of them: "auto" leaves out items from the beginning of the conversation.
_OVERFLOW = {"auto": "rolling", "disabled": "error"}
# What a chat names otherwise.
_PARAMS = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}

# No summary is longer than what it stands for, or than a small part of the context.
_MOST_SUMMARY = 2048  # tokens
_LEAST_SUMMARY = 128
_CHARACTERS = 4  # of a token, about
_SUM_UP = (
    "Sum up this conversation for somebody who goes on with it and sees nothing of it but the "
    "user's own messages: what is wanted, what was decided and found out, what was done and what "
    "is left to do, with names, numbers and paths as they are. Write the summary and nothing else."
)


def prompt_request(asked: PromptFields, model: str, items: Sequence[InputItem]) -> ChatRequest:
    """Of what decides over the prompt alone. `items`: the whole conversation."""
    return _validated({"model": model, **_prompt_fields(asked, items)})


def compaction_request(
    asked: CompactRequest, items: Sequence[InputItem], model: ServedModel
) -> ChatRequest:
    """Asks the model to sum up a conversation. It begins as the conversation does, tools included,
    so that its prefix is found in the cache; where it outgrew the context, it rolls."""
    fields = _prompt_fields(asked, items)
    messages = [*fields["messages"]]
    last = messages[-1]
    if last["role"] == "user":
        messages[-1] = {**last, "content": f"{last['content']}\n\n{_SUM_UP}"}
    else:
        messages.append({"role": "user", "content": _SUM_UP})
    size = sum(len(message["content"]) for message in messages)
    longest = min(_MOST_SUMMARY, model.context_length // 4)
    own: dict[str, Any] = {
        "model": asked.model,
        "messages": messages,
        "max_completion_tokens": max(1, min(longest, max(_LEAST_SUMMARY, size // _CHARACTERS))),
        "context_overflow": "rolling",
        "reasoning_effort": "none",
        "temperature": 0.0,
        "cache_salt": asked.cache_salt,
        "priority": asked.priority,
    }
    if "tools" in fields:
        own["tool_choice"] = "none"
    fields.pop("response_format", None)
    return _validated({**fields, **own})


def chat_request(asked: ResponsesRequest, items: Sequence[InputItem]) -> ChatRequest:
    """Raises BadRequest where the chat could not be asked for."""
    sampling = asked.model_dump(include=set(_SAMPLING), exclude_none=True)
    fields: dict[str, Any] = {**sampling, **_prompt_fields(asked, items)}
    if asked.max_output_tokens is not None:
        fields["max_completion_tokens"] = asked.max_output_tokens
    if asked.truncation is not None:
        fields["context_overflow"] = _OVERFLOW[asked.truncation]
    if asked.with_logprobs:
        fields |= {"logprobs": True, "top_logprobs": asked.top_logprobs or 0}
    return _validated(fields)


@contextmanager
def renamed_params() -> Iterator[None]:
    """Errors within name the fields of a response, not those of the chat that it is made into."""
    try:
        yield
    except OmlxError as error:
        error.param = _as_param(error.param)
        raise


def _as_param(name: str | None) -> str | None:
    return name and _PARAMS.get(name.partition(".")[0], name)


def _validated(fields: dict[str, Any]) -> ChatRequest:
    """Everything in it was validated once; what is left are bounds on the whole, as the number of
    messages."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = _as_param(str(first["loc"][0])) if first["loc"] else None
        raise BadRequest(f"{param or 'body'}: {first['msg']}", param=param) from None


def _prompt_fields(asked: PromptFields, items: Sequence[InputItem]) -> dict[str, Any]:
    messages = chat_messages(asked.instructions, items)
    if not messages:
        raise BadRequest("input holds nothing that this model can read", param="input")
    fields: dict[str, Any] = {"messages": messages, **_tool_fields(asked)}
    if asked.reasoning is not None and asked.reasoning.effort is not None:
        fields["reasoning_effort"] = asked.reasoning.effort
    if asked.text is not None and asked.text.format is not None:
        fields["response_format"] = _response_format(asked.text.format)
    if asked.chat_template_kwargs is not None:
        fields["chat_template_kwargs"] = asked.chat_template_kwargs
    return fields


def _tool_fields(asked: PromptFields) -> dict[str, Any]:
    """A choice among no tools is left to be refused, but for those that call none."""
    choice = _tool_choice(asked.tool_choice)
    if not asked.functions:
        return {} if choice in ("auto", "none") else {"tool_choice": choice}
    tools = [_tool(tool) for tool in asked.functions]
    fields: dict[str, Any] = {"tools": tools, "tool_choice": choice}
    if asked.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = asked.parallel_tool_calls
    return fields


def _tool(tool: FunctionTool) -> dict[str, Any]:
    function = tool.model_dump(include={"name", "description", "parameters", "strict"})
    given = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _tool_choice(choice: str | ToolChoice | None) -> str | dict[str, Any]:
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    if choice.type == "allowed_tools":
        return _allowed(choice)
    if choice.type == "function" and choice.name:
        return _named(choice.name)
    raise BadRequest("tool_choice can name a function only", param="tool_choice")


def _allowed(choice: ToolChoice) -> str | dict[str, Any]:
    """Of tools that are no functions none can be called."""
    tools = [_named(tool.name) for tool in choice.tools or () if tool.is_function and tool.name]
    mode = choice.mode or "auto"
    if not tools:
        return "none" if mode == "auto" else mode
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _response_format(given: TextFormat) -> dict[str, Any]:
    if given.type != "json_schema":
        return {"type": given.type}
    if given.name is None or given.schema_ is None:
        raise BadRequest("a json_schema needs name and schema", param="text.format")
    schema = {
        "name": given.name,
        "schema": given.schema_,
        "strict": given.strict,
        "description": given.description,
    }
    return {
        "type": "json_schema",
        "json_schema": {key: value for key, value in schema.items() if value is not None},
    }
