"""The JSON of a response, as the openai package's types want it. Pure."""

from typing import cast

from omlx_server.api.chat.choices import TokenCounts
from omlx_server.api.responses import answers
from omlx_server.api.responses.schema import (
    KnownTool,
    NamespaceTool,
    ResponsesCustomTool,
    ResponsesFunctionTool,
    ResponsesRequest,
    ResponsesTextFormat,
    ResponsesToolChoice,
    TextConfig,
)
from omlx_server.core.request import RequestDefaults
from omlx_server.errors import BadRequest, OmlxError, QueueFull


def opening(
    asked: ResponsesRequest, id: str, created: int, defaults: RequestDefaults, *, kept: bool
) -> answers.Response:
    """A response without any output, with the values that are in force for its request. Its `tools`
    are those that the model sees. `created`: seconds since 1970."""
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": asked.model,
        "output": [],
        "instructions": asked.instructions,
        "metadata": asked.metadata or {},
        "previous_response_id": asked.previous_response_id,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "prompt_cache_key": asked.prompt_cache_key,
        "safety_identifier": asked.safety_identifier,
        "user": asked.user,
        "frequency_penalty": _chosen(asked.frequency_penalty, defaults.frequency_penalty),
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "presence_penalty": _chosen(asked.presence_penalty, defaults.presence_penalty),
        "reasoning": _reasoning(asked, defaults),
        "service_tier": "default",
        "store": kept,
        "temperature": _chosen(asked.temperature, defaults.temperature),
        "text": _text(asked.text or TextConfig()),
        "tool_choice": _tool_choice(asked.tool_choice),
        "tools": [_tool(tool) for tool in asked.known_tools],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": _chosen(asked.top_p, defaults.top_p),
        "truncation": asked.truncation or "disabled",
        "usage": None,
    }


def _tool(tool: KnownTool) -> answers.OfferedTool:
    if isinstance(tool, NamespaceTool):
        return {
            "type": "namespace",
            "name": tool.name,
            "description": tool.description or "",
            "tools": [_single_tool(inner) for inner in tool.known],
        }
    return _single_tool(tool)


def _single_tool(
    tool: ResponsesFunctionTool | ResponsesCustomTool,
) -> answers.OfferedFunction | answers.OfferedCustom:
    told = tool.model_dump()
    if isinstance(tool, ResponsesCustomTool):
        return cast(answers.OfferedCustom, {**told, "format": told["format"] or {"type": "text"}})
    return cast(answers.OfferedFunction, told)


def _chosen(asked: float | None, default: float) -> float:
    return default if asked is None else asked


def usage(counts: TokenCounts) -> answers.ResponseUsage:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.completion,
    }


def failure(error: OmlxError) -> answers.ResponseFailure:
    """The `error` of a failed response, with one of the codes that clients know."""
    if isinstance(error, BadRequest):
        return {"code": "invalid_prompt", "message": error.message}
    if isinstance(error, QueueFull):
        return {"code": "rate_limit_exceeded", "message": error.message}
    return {"code": "server_error", "message": error.message}


def _reasoning(asked: ResponsesRequest, defaults: RequestDefaults) -> answers.ReasoningSettings:
    given = asked.reasoning
    summary = given.summary if given and given.summary != "none" else None
    effort = given.effort if given else None
    return {"effort": effort or defaults.reasoning_effort, "summary": summary}


def _text(text: TextConfig) -> answers.TextSettings:
    given = text.format or ResponsesTextFormat(type="text")
    used = given.model_dump(by_alias=True, exclude_none=True)
    if given.type == "json_schema":  # Open Responses wants these to be there
        used = {"description": None, "strict": False, **used}
    return {
        "format": cast(answers.UsedTextFormat, used),
        "verbosity": text.verbosity or "medium",
    }


def _tool_choice(
    choice: answers.ToolMode | ResponsesToolChoice | None,
) -> answers.ToolMode | answers.UsedToolChoice:
    if not isinstance(choice, ResponsesToolChoice):
        return choice or "auto"
    used = choice.model_dump(exclude_none=True)
    if choice.type == "allowed_tools":
        used.setdefault("mode", "auto")
    return cast(answers.UsedToolChoice, used)
