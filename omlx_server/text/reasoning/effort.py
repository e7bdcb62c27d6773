"""How much a model is to think, in the words of its chat template. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

from omlx_server.text.reasoning.style import Style

# What gpt-oss was trained with.
_CHANNEL_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_SWITCHES = ("enable_thinking", "thinking")


def template_kwargs(
    given: Mapping[str, Any],
    variables: Collection[str],
    style: Style | None,
    *,
    effort: str | None = None,
    budget: int | None = None,
) -> dict[str, Any]:
    """What was `given` goes before what follows from effort and budget. `variables`: those that
    the template reads."""
    kwargs = dict(given)
    if budget is not None and "thinking_budget" in variables:
        kwargs.setdefault("thinking_budget", budget)
    if effort is None:
        return kwargs
    told = _CHANNEL_EFFORTS.get(effort, effort) if style and style.channels else effort
    kwargs.setdefault("reasoning_effort", told)
    return switches(variables, on=effort not in ("none", "minimal")) | kwargs


def switches(variables: Collection[str], *, on: bool) -> dict[str, Any]:
    """Thinking on or off, by whatever names the template has for that."""
    return {switch: on for switch in _SWITCHES if switch in variables}
