"""The JSON of a response, as the openai package's types want it. Pure."""

from typing import Any

from omlx_server.api.choices import Usage
from omlx_server.api.responses.items import ItemJson
from omlx_server.api.responses.schema import FunctionTool, ResponsesRequest, TextConfig, ToolChoice
from omlx_server.api.served import SamplingDefaults
from omlx_server.errors import BadRequest, OmlxError, QueueFull

_ECHOED = (
    "instructions",
    "metadata",
    "previous_response_id",
    "max_output_tokens",
    "max_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "user",
)


def opening(
    asked: ResponsesRequest, id: str, created: int, defaults: SamplingDefaults, *, kept: bool
) -> dict[str, Any]:
    """A response of which there is nothing yet. Of the tools those are named that the model gets
    to see."""
    echoed = {name: getattr(asked, name) for name in _ECHOED}
    temperature, top_p = asked.temperature, asked.top_p
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
        **echoed,
        "metadata": asked.metadata or {},
        "frequency_penalty": asked.frequency_penalty or 0.0,
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "presence_penalty": asked.presence_penalty or 0.0,
        "reasoning": _reasoning(asked),
        "service_tier": "default",
        "store": kept,
        "temperature": defaults.temperature if temperature is None else temperature,
        "text": _text(asked.text or TextConfig()),
        "tool_choice": _tool_choice(asked.tool_choice),
        "tools": [_tool(tool) for tool in asked.functions],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": defaults.top_p if top_p is None else top_p,
        "truncation": asked.truncation or "disabled",
        "usage": None,
    }


def usage(counts: Usage) -> dict[str, Any]:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.completion,
    }


def failure(error: OmlxError) -> dict[str, Any]:
    """What went wrong, in one of the words that clients know."""
    code = "server_error"
    if isinstance(error, BadRequest):
        code = "invalid_prompt"
    elif isinstance(error, QueueFull):
        code = "rate_limit_exceeded"
    return {"code": code, "message": error.message}


def item_list(items: list[ItemJson], *, more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else "",
        "last_id": items[-1]["id"] if items else "",
        "has_more": more,
    }


def _reasoning(asked: ResponsesRequest) -> dict[str, Any]:
    given = asked.reasoning
    summary = given.summary if given and given.summary != "none" else None
    return {"effort": given.effort if given else None, "summary": summary}


def _text(text: TextConfig) -> dict[str, Any]:
    given = text.format.model_dump(by_alias=True, exclude_none=True) if text.format else {}
    # Those that Open Responses wants to be there.
    default = {"description": None, "strict": False} if given.get("type") == "json_schema" else {}
    return {"format": {"type": "text", **default, **given}, "verbosity": text.verbosity or "medium"}


def _tool_choice(choice: str | ToolChoice | None) -> str | dict[str, Any]:
    if not isinstance(choice, ToolChoice):
        return choice or "auto"
    mode = {"mode": "auto"} if choice.type == "allowed_tools" else {}
    return {**mode, **choice.model_dump(exclude_none=True)}


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return tool.model_dump()
