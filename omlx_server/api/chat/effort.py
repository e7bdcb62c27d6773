"""The fields of a chat request that say how much a model is to think."""

from typing import Any

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.models.served import ServedModel
from omlx_server.text.reasoning import effort


def template_kwargs(chat: ChatRequest, model: ServedModel) -> dict[str, Any]:
    """For the model's chat template: by the request, and else by the config."""
    asked = effort.template_kwargs(
        chat.chat_template_kwargs or {},
        model.template.variables,
        model.dialect.style,
        effort=chat.reasoning_effort,
        budget=chat.thinking_budget,
    )
    return {**model.template_kwargs, **asked}


def thinking_budget(chat: ChatRequest, model: ServedModel) -> int | None:
    """The most tokens of a thought, if that is limited."""
    if chat.thinking_budget is not None:
        return chat.thinking_budget
    kwargs = {**model.template_kwargs, **(chat.chat_template_kwargs or {})}
    value = kwargs.get("thinking_budget")
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else None
