"""Checks the names in `models.overrides` before a model is loaded. Quick to import, for the CLI and
the doctor."""

import difflib
from collections.abc import Collection, Iterator

from omlx_server.core.model_files.parser_signs import REASONING_PARSERS, TOOL_PARSERS
from omlx_server.core.model_files.template_kwargs import ALLOWED_KWARGS
from omlx_server.errors import ConfigError
from omlx_server.settings import Settings
from omlx_server.settings.overrides import ModelOverrides


def check_overrides(settings: Settings) -> None:
    """Raise ConfigError if an override names an unknown parser or template variable."""
    for name, own in settings.models.overrides.items():
        for key, given, known in _names(own):
            if given not in known:
                raise ConfigError(
                    f'models.overrides: {key} of "{name}" can\'t be {given}',
                    hint=_hint(given, known),
                )


def _hint(given: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}It can be {', '.join(sorted(known))}"


def _names(own: ModelOverrides) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield the key, the name and the allowed names of each name in an override."""
    if own.tool_parser:
        yield "tool_parser", own.tool_parser, TOOL_PARSERS
    if own.reasoning_parser:
        yield "reasoning_parser", own.reasoning_parser, REASONING_PARSERS
    for variable in own.chat_template_kwargs:
        yield "a name in chat_template_kwargs", variable, ALLOWED_KWARGS
