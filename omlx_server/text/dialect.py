"""How one model writes thoughts and tool calls, and what its chat template understands.

Immutable, found once when the model is loaded; any thread.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from omlx_server.text.reasoning.style import STYLES, Opening, Style, opening_of, style_of
from omlx_server.text.templates.system_turns import Render, SystemTurns
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.tools.fallback import supports_tools
from omlx_server.text.tools.families import FAMILIES, JSON_TOOLS, Family, family_of
from omlx_server.text.tools.numbering import new_call_id, short_call_id

# Tokens at the end of a prompt that tell whether a thought has begun.
_TAIL = 32

TOOL_PARSERS = tuple(FAMILIES)
REASONING_PARSERS: Mapping[str, Style | None] = MappingProxyType({**STYLES, "none": None})
"""What can be named for a model whose template tells too little, or something else."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """`family` of the calls, `style` of the thoughts, None where the model has none. `thinks`: the
    template knows where a thought begins. `shows_tools`, `systems`: what the template can do."""

    family: Family = JSON_TOOLS
    style: Style | None = None
    thinks: bool = False
    shows_tools: bool = False
    systems: SystemTurns = field(default_factory=SystemTurns)

    @property
    def make_call_id(self) -> Callable[[], str]:
        return short_call_id if self.family.name == "mistral" else new_call_id

    def opening(self, tokenizer: Tokenizer, prompt: list[int]) -> Opening:
        """How the prompt leaves the model."""
        if self.style is None:
            return Opening.PAST
        return opening_of(self.style, tokenizer.decode_all(prompt[-_TAIL:]))


def dialect_of(
    tokenizer: Tokenizer, render: Render, tool_parser: str = "", reasoning_parser: str = ""
) -> Dialect:
    """By the chat template and the vocabulary, as mlx-lm does it, but for parsers that are named.
    `render` is the template's.

    Raises:
        KeyError: there is no parser of that name.
    """
    sources = list(tokenizer.chat_templates.values())
    template = "\n".join(sources)
    style = style_of(template, tokenizer.vocabulary)
    if reasoning_parser:
        style = REASONING_PARSERS[reasoning_parser]
    shows_tools = any(map(supports_tools, sources))
    family = family_of(
        template, tokenizer.vocabulary, tokenizer.tool_parser, shows_tools=shows_tools
    )
    if tool_parser:
        family = FAMILIES[tool_parser]
    return Dialect(
        family=family,
        style=style,
        thinks=style is not None and style.start in template,
        shows_tools=shows_tools,
        systems=SystemTurns.of(render) if sources else SystemTurns(),
    )


def shown_ids(tokenizer: Tokenizer, markers: Iterable[str]) -> frozenset[int]:
    """The control tokens that markers are written with: readers of an answer must see them."""
    texts = tuple(markers)
    return frozenset(
        token
        for token in tokenizer.hidden_ids - tokenizer.eos_ids
        if (text := tokenizer.token_text(token)) and any(text in marker for marker in texts)
    )
