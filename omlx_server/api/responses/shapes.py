"""The JSON of a response, as the openai package's types want it. Pure."""

from omlx_server.api.chat.choices import Usage
from omlx_server.api.models.served import SamplingDefaults
from omlx_server.api.responses import answers
from omlx_server.api.responses.schema import (
    FunctionTool,
    NamedTool,
    ResponsesRequest,
    TextConfig,
    TextFormat,
    ToolChoice,
)
from omlx_server.errors import BadRequest, OmlxError, QueueFull


def opening(
    asked: ResponsesRequest, id: str, created: int, defaults: SamplingDefaults, *, kept: bool
) -> answers.Response:
    """A response of which there is nothing yet. Of the tools those are named that the model gets
    to see."""
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
        "instructions": asked.instructions,
        "metadata": asked.metadata or {},
        "previous_response_id": asked.previous_response_id,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "prompt_cache_key": asked.prompt_cache_key,
        "safety_identifier": asked.safety_identifier,
        "user": asked.user,
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


def usage(counts: Usage) -> answers.ResponseUsage:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.completion,
    }


def failure(error: OmlxError) -> answers.ResponseFailure:
    """What went wrong, in one of the words that clients know."""
    if isinstance(error, BadRequest):
        return {"code": "invalid_prompt", "message": error.message}
    if isinstance(error, QueueFull):
        return {"code": "rate_limit_exceeded", "message": error.message}
    return {"code": "server_error", "message": error.message}


def item_list(items: list[answers.InputItem], *, more: bool) -> answers.InputItemList:
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else "",
        "last_id": items[-1]["id"] if items else "",
        "has_more": more,
    }


def _reasoning(asked: ResponsesRequest) -> answers.ReasoningSettings:
    given = asked.reasoning
    summary = given.summary if given and given.summary != "none" else None
    return {"effort": given.effort if given else None, "summary": summary}


def _text(text: TextConfig) -> answers.TextSettings:
    given = text.format or TextFormat(type="text")
    used: answers.UsedTextFormat = {"type": given.type}
    if given.type == "json_schema":  # Open Responses wants these to be there
        used["description"], used["strict"] = None, False
    if given.name is not None:
        used["name"] = given.name
    if given.schema_ is not None:
        used["schema"] = given.schema_
    if given.strict is not None:
        used["strict"] = given.strict
    if given.description is not None:
        used["description"] = given.description
    return {"format": used, "verbosity": text.verbosity or "medium"}


def _tool_choice(
    choice: answers.ToolMode | ToolChoice | None,
) -> answers.ToolMode | answers.UsedToolChoice:
    if not isinstance(choice, ToolChoice):
        return choice or "auto"
    used: answers.UsedToolChoice = {"type": choice.type}
    if choice.type == "allowed_tools":
        used = {"mode": "auto", "type": choice.type}
    if choice.name is not None:
        used["name"] = choice.name
    if choice.mode is not None:
        used["mode"] = choice.mode
    if choice.tools is not None:
        used["tools"] = [_chosen(tool) for tool in choice.tools]
    return used


def _chosen(tool: NamedTool) -> answers.ChosenTool:
    return {"type": tool.type} if tool.name is None else {"type": tool.type, "name": tool.name}


def _tool(tool: FunctionTool) -> answers.OfferedTool:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
