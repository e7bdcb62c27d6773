"""The JSON of a response, in the openai package's types. Pure."""

from typing import cast

from omlx_server.api.chat.choices import TokenCounts
from omlx_server.api.responses import answers, schema
from omlx_server.core.request import RequestDefaults
from omlx_server.errors import BadRequest, OmlxError, QueueFull


def new_response(
    body: schema.ResponsesRequest, id: str, now: int, defaults: RequestDefaults, *, is_stored: bool
) -> answers.Response:
    """Return a response without output, with the values in force. `now`: seconds since 1970."""
    return {
        "id": id,
        "object": "response",
        "created_at": now,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": body.model,
        "output": [],
        "instructions": body.instructions,
        "metadata": body.metadata or {},
        "previous_response_id": body.previous_response_id,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "prompt_cache_key": body.prompt_cache_key,
        "safety_identifier": body.safety_identifier,
        "user": body.user,
        "frequency_penalty": _or_default(body.frequency_penalty, defaults.frequency_penalty),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": _or_default(body.presence_penalty, defaults.presence_penalty),
        "reasoning": _reasoning_settings(body, defaults),
        "service_tier": "default",
        "store": is_stored,
        "temperature": _or_default(body.temperature, defaults.temperature),
        "text": _text_settings(body.text or schema.TextConfig()),
        "tool_choice": _used_tool_choice(body.tool_choice),
        "tools": [_offered_tool(tool) for tool in body.known_tools],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _or_default(body.top_p, defaults.top_p),
        "truncation": body.truncation or "disabled",
        "usage": None,
    }


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value


def _reasoning_settings(
    body: schema.ResponsesRequest, defaults: RequestDefaults
) -> answers.ReasoningSettings:
    options = body.reasoning or schema.ReasoningOptions()
    summary = None if options.summary == "none" else options.summary
    return {"effort": options.effort or defaults.reasoning_effort, "summary": summary}


def _text_settings(text: schema.TextConfig) -> answers.TextSettings:
    text_format = text.format or schema.ResponsesTextFormat(type="text")
    fields = text_format.model_dump(by_alias=True, exclude_none=True)
    if text_format.type == "json_schema":  # Open Responses requires these fields
        fields = {"description": None, "strict": False, **fields}
    return {
        "format": cast(answers.UsedTextFormat, fields),
        "verbosity": text.verbosity or "medium",
    }


def _used_tool_choice(
    choice: answers.ToolMode | schema.ResponsesToolChoice | None,
) -> answers.ToolMode | answers.UsedToolChoice:
    if not isinstance(choice, schema.ResponsesToolChoice):
        return choice or "auto"
    fields = choice.model_dump(exclude_none=True)
    if choice.type == "allowed_tools":
        fields.setdefault("mode", "auto")
    return cast(answers.UsedToolChoice, fields)


def _offered_tool(tool: schema.KnownTool) -> answers.OfferedTool:
    if isinstance(tool, schema.NamespaceTool):
        return {
            "type": "namespace",
            "name": tool.name,
            "description": tool.description or "",
            "tools": [_offered_single_tool(one) for one in tool.known_tools],
        }
    return _offered_single_tool(tool)


def _offered_single_tool(
    tool: schema.ResponsesFunctionTool | schema.ResponsesCustomTool,
) -> answers.OfferedFunction | answers.OfferedCustom:
    fields = tool.model_dump()
    if isinstance(tool, schema.ResponsesCustomTool):
        return cast(
            answers.OfferedCustom, {**fields, "format": fields["format"] or {"type": "text"}}
        )
    return cast(answers.OfferedFunction, fields)


def usage(counts: TokenCounts) -> answers.ResponseUsage:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.completion,
    }


def failure(error: OmlxError) -> answers.ResponseFailure:
    """Return a failed response's `error`, with a code that clients know."""
    if isinstance(error, BadRequest):
        return {"code": "invalid_prompt", "message": error.message}
    if isinstance(error, QueueFull):
        return {"code": "rate_limit_exceeded", "message": error.message}
    return {"code": "server_error", "message": error.message}
