"""Sets a chat template's variables for reasoning."""

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
    """Return the `given` variables, and those that follow from `effort` and `budget` (tokens).
    `variables`: the names that the template reads."""
    kwargs = dict(given)
    if budget is not None and "thinking_budget" in variables:
        kwargs.setdefault("thinking_budget", budget)
    if effort is None:
        return kwargs
    level = _CHANNEL_EFFORTS.get(effort, effort) if style and style.channels else effort
    kwargs.setdefault("reasoning_effort", level)
    return switches(variables, on=effort not in ("none", "minimal")) | kwargs


def switches(variables: Collection[str], *, on: bool) -> dict[str, Any]:
    """Return the variables that switch thinking, under each name that the template has."""
    return {switch: on for switch in _SWITCHES if switch in variables}
