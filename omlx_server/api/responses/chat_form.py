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
from omlx_server.api.responses.items.messages import chat_messages, with_gaps
from omlx_server.api.responses.tool_names import PromptTool, ToolNames
from omlx_server.errors import BadRequest, OmlxError

# The sampling fields that both requests have; `n` and `stream_options` have no meaning here.
_SAMPLING = frozenset(SamplingFields.model_fields) - {"n", "stream_options"}
# The overflow policy for each `truncation`: with "auto", OpenAI drops items from the beginning.
_OVERFLOW = {"auto": "rolling", "disabled": "error"}
# Fields of a chat request, and their names in a request for a response.
_PARAMS = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}

# A summary has at most the conversation's tokens, within these bounds, and a quarter of the
# context.
_MOST_SUMMARY = 2048  # tokens
_LEAST_SUMMARY = 128  # tokens
_CHARACTERS = 4  # in a token, about
_SUM_UP = (
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
    return _validated({"model": model, **_prompt_fields(body, items, names)})


def compaction_request(
    body: schema.CompactRequest, items: Sequence[InputItem], model: ServedModel
) -> ChatRequest:
    """Return the chat request for a summary. Its prompt begins as the conversation's, tools
    included, for the prefix cache. Raises as `prompt_request`."""
    fields = _prompt_fields(body, items, ToolNames(body.tools or ()))
    messages = [*fields["messages"]]
    last = messages[-1]
    if last["role"] == "user":
        messages[-1] = {**last, "content": with_gaps([last["content"], _SUM_UP])}
    else:
        messages.append({"role": "user", "content": _SUM_UP})
    size = sum(map(_characters, messages))
    longest = min(_MOST_SUMMARY, model.context_length // 4)
    fields.pop("response_format", None)
    fields |= {
        "model": body.model,
        "messages": messages,
        "max_completion_tokens": max(1, min(longest, max(_LEAST_SUMMARY, size // _CHARACTERS))),
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
    return _validated(fields)


def chat_request(
    body: schema.ResponsesRequest, items: Sequence[InputItem], names: ToolNames
) -> ChatRequest:
    """Raises as `prompt_request`."""
    fields: dict[str, Any] = {
        **body.model_dump(include=set(_SAMPLING)),
        **_prompt_fields(body, items, names),
        "max_completion_tokens": body.max_output_tokens,
        "context_overflow": body.truncation and _OVERFLOW[body.truncation],
    }
    if body.with_logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return _validated(fields)


@contextmanager
def renamed_params() -> Iterator[None]:
    """Rename `param` in errors from the chat request's field to the client's own."""
    try:
        yield
    except OmlxError as error:
        error.param = _as_param(error.param)
        raise


def _as_param(name: str | None) -> str | None:
    return name and _PARAMS.get(name.partition(".")[0], name)


def _validated(fields: dict[str, Any]) -> ChatRequest:
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = _as_param(str(first["loc"][0])) if first["loc"] else None
        raise BadRequest(f"{param or 'body'}: {first['msg']}", param=param) from None


def _characters(message: Mapping[str, Any]) -> int:
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
    if body.instructions == "":  # empty ones still replace a default
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
    """A choice without any tool is passed on; the chat refuses it."""
    choice = _tool_choice(body.tool_choice, names)
    if not names.tools:
        return {} if choice in ("auto", "none") else {"tool_choice": choice}
    tools = [_tool(named) for named in names.tools]
    parallel = body.parallel_tool_calls
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}


def _tool(named: PromptTool) -> dict[str, Any]:
    tool = named.tool
    fields = {**tool.model_dump(exclude={"type", "format"}, exclude_none=True), "name": named.shown}
    if named.about:
        about = f"About {named.namespace}: {named.about}"
        fields["description"] = "\n\n".join(filter(None, (about, tool.description)))
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
    tools = [_named(name) for tool in choice.tools or () for name in names.chosen(tool)]
    mode = choice.mode or "auto"
    if not tools:
        return "none" if mode == "auto" else mode
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _response_format(wanted: schema.ResponsesTextFormat) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    if wanted.name is None or wanted.schema_ is None:
        raise BadRequest("a json_schema needs name and schema", param="text.format")
    schema = wanted.model_dump(exclude={"type"}, by_alias=True, exclude_none=True)
    return {"type": "json_schema", "json_schema": schema}
