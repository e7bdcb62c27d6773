"""How a model marks its thoughts, and what its template is told of the effort. Immutable."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

from omlx_server.core.model_files.parser_signs import NO_REASONING

# What gpt-oss was trained with.
_CHANNEL_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True)
class Style:
    """The markers of one model."""

    start: str  # around a thought
    end: str
    close: str  # the text, with `end`, that is forced on a model whose thought has to end
    # markers in the content that are not shown, and end a thought, too
    dropped: tuple[str, ...] = ()
    # markers of headers, for a model that puts one before every message (gpt-oss)
    channels: tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[str, ...]:
        return (self.end, *self.dropped)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.start, self.end, self.close, *self.dropped, *self.channels)


class Opening(Enum):
    """How a prompt leaves a model: within a thought, free to begin one, or past it."""

    WITHIN = auto()
    FREE = auto()
    PAST = auto()


def _plain(start: str, end: str) -> Style:
    return Style(start, end, f"\n{end}\n\n")


# https://cookbook.openai.com/articles/openai-harmony. reasoning/channels.py ends its thoughts.
HARMONY = Style(
    start="<|channel|>",
    end="<|channel|>final<|message|>",
    close="<|end|><|start|>assistant<|channel|>final<|message|>",
    channels=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"),
)
STYLES: Mapping[str, Style | None] = MappingProxyType(
    {
        NO_REASONING: None,
        "harmony": HARMONY,
        "think": _plain("<think>", "</think>"),
        "longcat": _plain("<longcat_think>", "</longcat_think>"),
        "think_start": _plain("<|think:start|>", "<|think:end|>"),
        "mistral": Style("[THINK]", "[/THINK]", "[/THINK]"),
        "seed_oss": _plain("<seed:think>", "</seed:think>"),
        "cohere": Style(
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|END_THINKING|>",
            ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        ),
        "apertus": _plain("<|inner_prefix|>", "<|inner_suffix|>"),
        "apriel": Style(
            "Here are my reasoning steps:",
            "[BEGIN FINAL RESPONSE]",
            "\n[BEGIN FINAL RESPONSE]\n",
            ("[END FINAL RESPONSE]",),
        ),
        "hy3": _plain("<think:opensource>", "</think:opensource>"),
        "minimax_m3": _plain("<mm:think>", "</mm:think>"),
        "muse": Style(
            "to=self<|message|>",
            "<|eom|><|start|>assistant",
            "<|eom|><|start|>assistant to=user<|message|>",
            (" to=user<|message|>", "to=user<|message|>", "<|eom|><|start|>assistant"),
        ),
        "solar": Style(
            "<|think|>",
            "<|end|><|begin|>assistant<|content|>",
            "<|end|><|begin|>assistant<|content|>",
            ("<|end|><|begin|>assistant<|tool_calls|>", "<|tool_calls|>", "<|content|>"),
        ),
        "gemma4": Style(
            "<|channel>thought",
            "<channel|>",
            "<channel|>",
            ("<|channel>thought\n<channel|>", "<channel|>"),
        ),
        "kimi_k3": Style(
            "<|open|>think<|sep|>",
            "<|close|>think<|sep|>",
            "<|close|>think<|sep|>",
            ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        ),
    }
)


def opening_of(style: Style, prompt_end: str) -> Opening:
    """Return how a prompt leaves the model. `prompt_end`: its last few words, with control
    tokens."""
    end = prompt_end.rstrip()
    if style.channels:
        return _opening_in_channels(end)
    if end.endswith(style.end):
        return Opening.PAST
    return Opening.WITHIN if end.endswith(style.start) else Opening.FREE


def _opening_in_channels(end: str) -> Opening:
    _, marker, header = end.rpartition("<|start|>assistant")
    if marker and "<|message|>" not in header:
        return Opening.FREE
    return Opening.WITHIN if header.startswith("<|channel|>analysis<|message|>") else Opening.PAST


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
