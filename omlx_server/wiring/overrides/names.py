"""Checks the names in `models.overrides`. Quick to import."""

import difflib
from collections.abc import Collection, Iterator

from omlx_server.core.model_files.parser_signs import REASONING_PARSERS, TOOL_PARSERS
from omlx_server.core.model_files.template_kwargs import ALLOWED_KWARGS
from omlx_server.errors import ConfigError
from omlx_server.settings import Settings
from omlx_server.settings.overrides import ModelOverrides


def check_overrides(settings: Settings) -> None:
    """Raise ConfigError if an override names an unknown parser or template variable."""
    for error in name_problems(settings):
        raise error


def name_problems(settings: Settings) -> Iterator[ConfigError]:
    for name, overrides in settings.models.overrides.items():
        for key, value, allowed in _names(overrides):
            if value not in allowed:
                yield ConfigError(
                    f'models.overrides: {key} of "{name}" can\'t be {value}',
                    hint=_hint(value, allowed),
                )


def _hint(value: str, allowed: Collection[str]) -> str:
    near = difflib.get_close_matches(value, allowed, n=1, cutoff=0.5)
    suggestion = f"did you mean {near[0]}? " if near else ""
    return f"{suggestion}It can be {', '.join(sorted(allowed))}"


def _names(overrides: ModelOverrides) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield the key, the name and the allowed names."""
    if overrides.tool_parser:
        yield "tool_parser", overrides.tool_parser, TOOL_PARSERS
    if overrides.reasoning_parser:
        yield "reasoning_parser", overrides.reasoning_parser, REASONING_PARSERS
    for variable in overrides.chat_template_kwargs:
        yield "a name in chat_template_kwargs", variable, ALLOWED_KWARGS
