"""Turns a request for a response into the chat request that asks for the same. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.sampling import SamplingFields
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.responses import schema
from omlx_server.api.responses.answers import InputItem
from omlx_server.api.responses.items.messages import chat_messages, with_gaps
from omlx_server.api.responses.tool_names import PromptTool, ToolNames
from omlx_server.errors import BadRequest, OmlxError

# The sampling fields that both requests have; `n` and `stream_options` have no meaning here.
_SAMPLING = frozenset(SamplingFields.model_fields) - {"n", "stream_options"}
# The overflow policy for each `truncation`: with "auto", OpenAI drops items from the beginning.
_OVERFLOW = {"auto": "rolling", "disabled": "error"}
# Fields of a chat request, and what they are called in a request for a response.
_PARAMS = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}

# A summary may have as many tokens as the conversation that it stands for, within these bounds, and
# at most a quarter of the context.
_MOST_SUMMARY = 2048  # tokens
_LEAST_SUMMARY = 128  # tokens
_CHARACTERS = 4  # in a token, about
_SUM_UP = (
    "Sum up this conversation for somebody who goes on with it and sees nothing of it but the "
    "user's own messages: what is wanted, what was decided and found out, what was done and what "
    "is left to do, with names, numbers and paths as they are. Write the summary and nothing else."
)


def prompt_request(
    asked: schema.PromptFields, model: str, items: Sequence[InputItem]
) -> ChatRequest:
    """A chat request with the fields that make the prompt, to count its tokens. `items`: the whole
    conversation. Raises BadRequest where no such chat is possible."""
    names = ToolNames(asked.tools or ())
    return _validated({"model": model, **_prompt_fields(asked, items, names)})


def compaction_request(
    asked: schema.CompactRequest, items: Sequence[InputItem], model: ServedModel
) -> ChatRequest:
    """The chat request that asks the model to sum up a conversation. Its prompt begins as the
    conversation's does, tools included, so that its prefix is found in the prefix cache. Where it
    is too long for the context, the oldest turns are left out. Raises BadRequest as
    `prompt_request`."""
    fields = _prompt_fields(asked, items, ToolNames(asked.tools or ()))
    messages = [*fields["messages"]]
    last = messages[-1]
    if last["role"] == "user":
        messages[-1] = {**last, "content": with_gaps([last["content"], _SUM_UP])}
    else:
        messages.append({"role": "user", "content": _SUM_UP})
    size = sum(map(_characters, messages))
    longest = min(_MOST_SUMMARY, model.context_length // 4)
    own: dict[str, Any] = {
        "model": asked.model,
        "messages": messages,
        "max_completion_tokens": max(1, min(longest, max(_LEAST_SUMMARY, size // _CHARACTERS))),
        "context_overflow": "rolling",
        "reasoning_effort": "none",
        "temperature": 0.0,
        "stop": [],
        "adapter": asked.adapter,
        "cache_salt": asked.cache_salt,
        "priority": asked.priority,
    }
    if "tools" in fields:
        own["tool_choice"] = "none"
    fields.pop("response_format", None)
    return _validated({**fields, **own})


def chat_request(
    asked: schema.ResponsesRequest, items: Sequence[InputItem], names: ToolNames
) -> ChatRequest:
    """Return the chat request for the whole conversation `items`. Raises BadRequest where no such
    chat is possible."""
    fields: dict[str, Any] = {
        **asked.model_dump(include=set(_SAMPLING)),
        **_prompt_fields(asked, items, names),
        "max_completion_tokens": asked.max_output_tokens,
        "context_overflow": asked.truncation and _OVERFLOW[asked.truncation],
    }
    if asked.with_logprobs:
        fields |= {"logprobs": True, "top_logprobs": asked.top_logprobs or 0}
    return _validated(fields)


@contextmanager
def renamed_params() -> Iterator[None]:
    """Rename `param` in errors that are raised inside: from the field of the chat request to the
    field of the client's own request."""
    try:
        yield
    except OmlxError as error:
        error.param = _as_param(error.param)
        raise


def _as_param(name: str | None) -> str | None:
    return name and _PARAMS.get(name.partition(".")[0], name)


def _validated(fields: dict[str, Any]) -> ChatRequest:
    """The chat request of these fields. Each field was validated before; what can still fail are
    bounds on the whole, such as the number of messages. Raises BadRequest then."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = _as_param(str(first["loc"][0])) if first["loc"] else None
        raise BadRequest(f"{param or 'body'}: {first['msg']}", param=param) from None


def _characters(message: Mapping[str, Any]) -> int:
    """How many characters the texts of a message have."""
    content = message["content"]
    if isinstance(content, str):
        return len(content)
    return sum(len(part.get("text", "")) for part in content)


def _prompt_fields(
    asked: schema.PromptFields, items: Sequence[InputItem], names: ToolNames
) -> dict[str, Any]:
    messages = chat_messages(asked.instructions, items, names)
    if not messages:
        raise BadRequest("input holds nothing that this model can read", param="input")
    if asked.instructions == "":  # they are some all the same: no default stands for them
        messages = [{"role": "system", "content": ""}, *messages]
    fields: dict[str, Any] = {
        "messages": messages,
        **_tool_fields(asked, names),
        "reasoning_effort": asked.reasoning and asked.reasoning.effort,
        "chat_template_kwargs": asked.chat_template_kwargs,
    }
    if asked.text is not None and asked.text.format is not None:
        fields["response_format"] = _response_format(asked.text.format)
    return fields


def _tool_fields(asked: schema.PromptFields, names: ToolNames) -> dict[str, Any]:
    """The fields for tools. Without any that the model sees, a choice that needs one is passed on,
    and the chat refuses it."""
    choice = _tool_choice(asked.tool_choice, names)
    if not names.tools:
        return {} if choice in ("auto", "none") else {"tool_choice": choice}
    tools = [_tool(named) for named in names.tools]
    parallel = asked.parallel_tool_calls
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}


def _tool(named: PromptTool) -> dict[str, Any]:
    tool = named.tool
    fields = {**tool.model_dump(exclude={"type", "format"}, exclude_none=True), "name": named.shown}
    if named.about:
        begun = f"About {named.namespace}: {named.about}"
        fields["description"] = "\n\n".join(filter(None, (begun, tool.description)))
    if isinstance(tool, schema.ResponsesFunctionTool):
        return {"type": "function", "function": fields}
    if isinstance(tool.format, schema.GrammarInput):
        grammar = tool.format.model_dump(exclude={"type"})
        fields["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": fields}


def _tool_choice(
    choice: str | schema.ResponsesToolChoice | None, names: ToolNames
) -> str | dict[str, Any]:
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    if choice.type == "allowed_tools":
        return _allowed(choice, names)
    if choice.type in ("function", "custom") and (chosen := names.chosen(choice)):
        return _named(chosen[0])
    raise BadRequest("tool_choice can name a function or a custom tool", param="tool_choice")


def _allowed(choice: schema.ResponsesToolChoice, names: ToolNames) -> str | dict[str, Any]:
    """The tool choice for `allowed_tools`; only tools that the model sees count."""
    tools = [_named(name) for tool in choice.tools or () for name in names.chosen(tool)]
    mode = choice.mode or "auto"
    if not tools:
        return "none" if mode == "auto" else mode
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _response_format(given: schema.ResponsesTextFormat) -> dict[str, Any]:
    if given.type != "json_schema":
        return {"type": given.type}
    if given.name is None or given.schema_ is None:
        raise BadRequest("a json_schema needs name and schema", param="text.format")
    schema = given.model_dump(exclude={"type"}, by_alias=True, exclude_none=True)
    return {"type": "json_schema", "json_schema": schema}
