"""How a model marks what it thinks. Pure values; any thread."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from omlx_server.core.model_files.parsers import reasoning_parser_of


@dataclass(frozen=True, slots=True)
class Style:
    """`start` and `end` are the markers around a thought. `close` is what is written for a model
    that must come to an end; it holds `end`. `dropped` are markers of the content: nobody sees
    them. `channels`: every message of the answer has a header (gpt-oss)."""

    start: str
    end: str
    close: str
    dropped: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()

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


# https://cookbook.openai.com/articles/openai-harmony. A thought ends where the final message
# begins.
HARMONY = Style(
    start="<|channel|>",
    end="<|channel|>final<|message|>",
    close="<|end|><|start|>assistant<|channel|>final<|message|>",
    channels=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"),
)
STYLES: Mapping[str, Style] = MappingProxyType(
    {
        "harmony": HARMONY,
        "think": _plain("<think>", "</think>"),
        "longcat": _plain("<longcat_think>", "</longcat_think>"),
        "think_start": _plain("<|think:start|>", "<|think:end|>"),
        "mistral": Style("[THINK]", "[/THINK]", "[/THINK]"),
        "seed_oss": _plain("<seed:think>", "</seed:think>"),
        "gemma4": Style("<|channel>thought", "<channel|>", "<channel|>"),
        "kimi_k3": Style(
            "<|open|>think<|sep|>",
            "<|close|>think<|sep|>",
            "<|close|>think<|sep|>",
            (
                "<|open|>response<|sep|>",
                "<|close|>response<|sep|>",
                "<|close|>message<|sep|>",
            ),
        ),
    }
)


def style_of(template: str, vocabulary: Collection[str]) -> Style | None:
    """None for a model that does not think aloud: see `reasoning_parser_of`."""
    return STYLES.get(reasoning_parser_of(template, vocabulary))


def opening_of(style: Style, prompt_end: str) -> Opening:
    """`prompt_end`: the last few words of the rendered prompt, control tokens included."""
    end = prompt_end.rstrip()
    if end.endswith(style.end):
        return Opening.PAST
    return Opening.WITHIN if end.endswith(style.start) else Opening.FREE
