"""How much a model is to think, in the words of its chat template. Pure."""

from typing import Any

from omlx_server.api.openai.schema import ChatRequest
from omlx_server.api.served import ServedModel

# What gpt-oss was trained with.
_CHANNEL_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_SWITCHES = ("enable_thinking", "thinking")


def template_kwargs(chat: ChatRequest, model: ServedModel) -> dict[str, Any]:
    """The client's own kwargs go before what follows from other fields."""
    kwargs, effort = dict(chat.chat_template_kwargs or {}), chat.reasoning_effort
    known = model.template.variables
    if chat.thinking_budget is not None and "thinking_budget" in known:
        kwargs.setdefault("thinking_budget", chat.thinking_budget)
    if effort is None:
        return kwargs
    style = model.dialect.style
    told = _CHANNEL_EFFORTS.get(effort, effort) if style and style.channels else effort
    kwargs.setdefault("reasoning_effort", told)
    for switch in _SWITCHES:
        if switch in known:
            kwargs.setdefault(switch, effort not in ("none", "minimal"))
    return kwargs


def thinking_budget(chat: ChatRequest) -> int | None:
    """The most tokens of a thought, if that is limited."""
    if chat.thinking_budget is not None:
        return chat.thinking_budget
    value = (chat.chat_template_kwargs or {}).get("thinking_budget")
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else None
