"""How one model writes thoughts and tool calls, and renders prompts for it. Immutable."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from omlx_server.core.images import FIRST_ID
from omlx_server.core.model_files.parser_signs import (
    has_recipients,
    parser_beside,
    reasoning_parser_of,
    tool_parser_of,
)
from omlx_server.text.image_marks import ImageMarks
from omlx_server.text.reasoning.style import STYLES, Opening, Style, opening_of
from omlx_server.text.templates.messages import Message
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.templates.turn_forms import CallTurns, Render, SystemTurns
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.tool_calls.fallback import has_calls_or_results, supports_tools, tools_as_text
from omlx_server.text.tool_calls.formats import FAMILIES, JSON_TOOLS, CallFormat
from omlx_server.text.tool_calls.recipients import RECIPIENT_MARK
from omlx_server.text.tool_calls.values import new_call_id, short_call_id

# A tool for trials.
_TRIAL_TOOL_NAME = "c0ffee_look"
_TRIAL_TOOL = {"type": "function", "function": {"name": _TRIAL_TOOL_NAME, "description": "Look."}}
# Tokens at the end of a prompt that tell whether a thought, or a text, has begun.
_TAIL_TOKENS = 32
FILL_IN = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
)
"""The control tokens of such models: before the prompt, the suffix and the middle."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The forms of one model."""

    family: CallFormat = JSON_TOOLS  # how calls are written
    style: Style | None = None  # how thoughts are written; None for a model without them
    thinks: bool = False  # the template holds the marker that begins a thought
    shows_tools: bool = False  # the template shows tools
    systems: SystemTurns = field(default_factory=SystemTurns)  # where it shows system messages
    systems_beside_tools: SystemTurns = field(default_factory=SystemTurns)
    calls: CallTurns = field(default_factory=CallTurns)  # which turns with calls it takes
    recipients: bool = False  # each message of an answer begins with the name of its recipient

    @property
    def make_call_id(self) -> Callable[[], str]:
        return short_call_id if self.family.name == "mistral" else new_call_id

    @property
    def in_channels(self) -> bool:
        return self.style is not None and bool(self.style.channels)

    def opening(self, tokenizer: Tokenizer, prompt: list[int]) -> Opening:
        if self.style is None and not self.recipients:
            return Opening.PAST
        tail = [token for token in prompt[-_TAIL_TOKENS:] if token < FIRST_ID]
        prompt_end = tokenizer.decode_all(tail)
        if self.style is None or self.recipients:
            return Opening.FREE if prompt_end.endswith(RECIPIENT_MARK) else Opening.PAST
        return opening_of(self.style, prompt_end)


def dialect_of(
    tokenizer: Tokenizer, render: Render, tool_parser: str = "", reasoning_parser: str = ""
) -> Dialect:
    """Find the dialect by the chat template and the vocabulary. Raises KeyError for an unknown
    parser."""
    sources = list(tokenizer.chat_templates.values())
    template = "\n".join(sources)
    style = STYLES[reasoning_parser or reasoning_parser_of(template, tokenizer.vocabulary)]
    shows_tools = any(map(supports_tools, sources))
    name = tool_parser or tool_parser_of(
        template, tokenizer.vocabulary, tokenizer.tool_parser, shows_tools=shows_tools
    )
    beside = "" if shows_tools or tool_parser else parser_beside(template)
    family = FAMILIES[name]
    if beside not in ("", name):
        family = replace(family, beside=FAMILIES[beside])
    render_with_tool: Render = partial(render, tools=[_TRIAL_TOOL])
    systems = systems_beside_tools = SystemTurns.of(render) if sources else SystemTurns()
    if shows_tools:
        systems_beside_tools = SystemTurns.of(render_with_tool, _TRIAL_TOOL_NAME)
    return Dialect(
        family=family,
        style=style,
        thinks=style is not None and style.start in template,
        shows_tools=shows_tools,
        systems=systems,
        systems_beside_tools=systems_beside_tools,
        calls=CallTurns.of(render_with_tool) if shows_tools else CallTurns(),
        recipients=has_recipients(template),
    )


def shown_ids(tokenizer: Tokenizer, markers: Iterable[str]) -> frozenset[int]:
    """Return the control tokens whose text is in a marker, so that parsers must see it."""
    all_markers = tuple(markers)
    texts = {id: tokenizer.token_text(id) for id in tokenizer.hidden_ids - tokenizer.eos_ids}
    return frozenset(
        id for id, text in texts.items() if text and any(text in marker for marker in all_markers)
    )


@dataclass(frozen=True, slots=True, eq=False)
class PromptRenderer:
    """A model's template with one request's tools, variables and marked images."""

    template: ChatTemplate
    dialect: Dialect
    tools: Sequence[Mapping[str, Any]]
    kwargs: Mapping[str, Any]
    images: ImageMarks | None = None

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the template can take them. Without tools in the template,
        tools and calls become plain text."""
        if not self.dialect.shows_tools and (
            self.tools or any(map(has_calls_or_results, messages))
        ):
            messages = tools_as_text(messages, self.tools)
        dialect = self.dialect
        shows_these = self.tools and dialect.shows_tools
        systems = dialect.systems_beside_tools if shows_these else dialect.systems
        return dialect.calls.fitted(systems.fitted(messages))

    def tokenize(
        self,
        fitted: Sequence[Mapping[str, Any]],
        *,
        opens: bool = True,
        goes_on: bool = False,
        most: int | None = None,
    ) -> list[int]:
        """Return at most `most` token ids. With `opens` the prompt ends where an answer begins;
        with `goes_on`, within the last message. Raises as `ChatTemplate.encode`."""
        return self.template.encode(
            fitted,
            tools=self.tools if self.dialect.shows_tools else None,
            add_generation_prompt=opens,
            continue_final_message=goes_on,
            kwargs=self.kwargs,
            most=most,
            images=self.images,
        )
