"""Loads the settings of a command with its flags and --set options, and checks overrides."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omlx_server import settings
from omlx_server.core.memory.ledger import limit_of
from omlx_server.errors import ConfigError, UsageError
from omlx_server.settings import Settings


def load_settings(
    config: Path | None, sets: Sequence[str] = (), flags: Mapping[str, str | None] | None = None
) -> settings.Loaded:
    """Return the settings with --set and `flags`, which map keys to values. Raises UsageError."""
    return settings.load(config, overrides_of(sets, flags))


def memory_limit(settings: Settings) -> int:
    """Return the bytes of a server's memory limit, where Metal allows as many."""
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return limit_of(settings.memory.limit, settings.memory.reserve, ram, None)


def overrides_of(sets: Sequence[str], flags: Mapping[str, str | None] | None) -> dict[str, str]:
    """Return the overrides by key; a flag wins. Raises UsageError for a malformed --set."""
    overrides = dict(_split_assignment(text) for text in sets)
    return overrides | {key: value for key, value in (flags or {}).items() if value is not None}


def _split_assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise UsageError(
            f"--set {text}: expected SECTION.KEY=VALUE", hint="for example --set server.port=9000"
        )
    return key.strip(), value


def check_model_overrides(settings: Settings) -> None:
    """Check the models' overrides as `serve` does. Raises ConfigError."""
    for error in model_override_problems(settings):
        raise error


def model_override_problems(settings: Settings) -> Iterator[ConfigError]:
    from omlx_server.wiring.overrides.names import name_problems

    yield from name_problems(settings)
    yield from _template_problems(settings)


def check_chat_templates(settings: Settings) -> None:
    """Check chat templates. Raises ConfigError."""
    for error in _template_problems(settings):
        raise error


def _template_problems(settings: Settings) -> Iterator[ConfigError]:
    if any(override.chat_template for override in settings.models.overrides.values()):
        from omlx_server.wiring.overrides.templates import template_problems

        yield from template_problems(settings)
