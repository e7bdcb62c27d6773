"""Translate a Messages request into a chat request."""

from collections.abc import Sequence
from typing import Any

from omlx_server.api.anthropic import turns
from omlx_server.api.anthropic.request import CountRequest, MessagesRequest, Tool
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.sampling import SharedFields
from omlx_server.api.http.exchange import warn_of_left_out
from omlx_server.api.http.json_body import validate_fields
from omlx_server.errors import BadRequest
from omlx_server.text.reasoning.style import switches
from omlx_server.text.templates.template import ChatTemplate

Fields = dict[str, Any]


def chat_request(body: CountRequest, template: ChatTemplate) -> ChatRequest:
    """Return the chat request that asks for the same. Raises BadRequest where there is none."""
    messages = turns.chat_messages(body)
    fields = {
        "model": body.model,
        "messages": messages,
        **_prefill_fields(messages[-1]),
        **_tool_fields(body),
        **_thinking_fields(body, template),
        **_output_fields(body),
    }
    if isinstance(body, MessagesRequest):
        fields |= body.model_dump(include=set(SharedFields.model_fields))
        fields |= {"max_completion_tokens": body.max_tokens, "stop": body.stop_sequences}
    return validate_fields(ChatRequest, fields)


def _prefill_fields(last: turns.Message) -> Fields:
    """Let a final assistant turn begin the answer. Raises BadRequest where it calls tools."""
    if last["role"] != "assistant":
        return {}
    if "tool_calls" in last:
        raise BadRequest("each tool_use needs a tool_result after it", param="messages")
    return {"continue_final_message": True, "add_generation_prompt": False}


def _tool_fields(body: CountRequest) -> Fields:
    """Return tools and tool choice. Tools that Anthropic runs are left out, with a warning."""
    warn_of_left_out({tool.type or "" for tool in body.tools or () if not tool.custom})
    tools = [_chat_tool(i, tool) for i, tool in enumerate(body.tools or ()) if tool.custom]
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise BadRequest("the names of tools must be unique", param="tools")
    choice = body.tool_choice
    fields: Fields = {"tools": tools} if tools else {}
    if choice is None or not (tools or choice.type in ("any", "tool")):
        return fields
    fields["tool_choice"] = _chat_tool_choice(choice.type, choice.name, names)
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def _chat_tool(index: int, tool: Tool) -> Fields:
    if tool.name is None or tool.input_schema is None:
        raise BadRequest("a tool needs name and input_schema", param=f"tools.{index}")
    function = tool.model_dump(include={"name", "description", "strict"}, exclude_none=True)
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def _chat_tool_choice(kind: str, name: str | None, names: Sequence[str]) -> str | Fields:
    if kind in ("auto", "none"):
        return kind
    if not names:
        raise BadRequest("this tool_choice needs tools", param="tool_choice")
    if kind == "any":
        return "required"
    if name not in names:
        raise BadRequest("tool_choice names no tool of the request", param="tool_choice.name")
    return {"type": "function", "function": {"name": name}}


def _thinking_fields(body: CountRequest, template: ChatTemplate) -> Fields:
    """Return the fields for thinking; without `thinking` the template decides."""
    kwargs = dict(body.chat_template_kwargs or {})
    fields: Fields = {}
    if body.thinking is not None:
        kwargs = switches(template.variables, on=body.thinking.type != "disabled") | kwargs
        if body.thinking.type == "enabled":
            fields["thinking_budget"] = _thinking_budget(body, body.thinking.budget_tokens)
    return {**fields, "chat_template_kwargs": kwargs} if kwargs else fields


def _thinking_budget(body: CountRequest, budget: int | None) -> int:
    path = "thinking.budget_tokens"
    if budget is None:
        raise BadRequest("thinking of type enabled needs budget_tokens", param=path)
    if isinstance(body, MessagesRequest) and budget >= body.max_tokens:
        raise BadRequest("budget_tokens must be below max_tokens", param=path)
    return budget


def _output_fields(body: CountRequest) -> Fields:
    """Return effort and response format."""
    config = body.output_config
    # `output_format` is the older name of `output_config.format`.
    output_format = (config.format if config else None) or body.output_format
    fields: Fields = {"reasoning_effort": config.effort} if config else {}
    if output_format is not None:
        named_schema = {"name": "answer", "strict": True, "schema": output_format.json_schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": named_schema}
    return fields
