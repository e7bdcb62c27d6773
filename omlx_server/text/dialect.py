"""How one model writes thoughts and tool calls, and what its chat template shows. Immutable."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from omlx_server.core.images import FIRST_ID
from omlx_server.core.model_files.parser_signs import (
    has_recipients,
    parser_beside,
    reasoning_parser_of,
    tool_parser_of,
)
from omlx_server.text.reasoning.style import STYLES, Opening, Style, opening_of
from omlx_server.text.templates.call_turns import CallTurns
from omlx_server.text.templates.system_turns import SystemTurns
from omlx_server.text.templates.trials import Render
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.tool_calls.fallback import supports_tools
from omlx_server.text.tool_calls.formats import FAMILIES, JSON_TOOLS, CallFormat
from omlx_server.text.tool_calls.numbering import new_call_id, short_call_id
from omlx_server.text.tool_calls.recipients import RECIPIENT_MARK

# A tool for trials.
_TRIAL_TOOL_NAME = "c0ffee_look"
_TRIAL_TOOL = {"type": "function", "function": {"name": _TRIAL_TOOL_NAME, "description": "Look."}}
# Tokens at the end of a prompt that tell whether a thought, or a text, has begun.
_TAIL_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Dialect:
    """The forms of one model.

    family       how calls are written
    style        how thoughts are written; None for a model without them
    thinks       the template holds the marker that begins a thought
    shows_tools  the template shows tools
    systems, systems_beside_tools  where it shows system messages
    calls        which turns with calls it takes
    recipients   each message of an answer begins with the name of its recipient
    """

    family: CallFormat = JSON_TOOLS
    style: Style | None = None
    thinks: bool = False
    shows_tools: bool = False
    systems: SystemTurns = field(default_factory=SystemTurns)
    systems_beside_tools: SystemTurns = field(default_factory=SystemTurns)
    calls: CallTurns = field(default_factory=CallTurns)
    recipients: bool = False

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
