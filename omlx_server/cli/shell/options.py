"""Turns the flags and the --set options of a command into overrides of the settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from omlx_server import settings
from omlx_server.errors import UsageError


def load_settings(
    config: Path | None, sets: Sequence[str] = (), flags: Mapping[str, str | None] | None = None
) -> settings.Loaded:
    """Return the settings in force, with those of --set and of `flags`, which map keys to values; a
    flag wins over a --set. Raises UsageError as `overrides_of`, and as `settings.load`."""
    return settings.load(config, overrides_of(sets, flags))


def overrides_of(sets: Sequence[str], flags: Mapping[str, str | None] | None) -> dict[str, str]:
    """Return the overrides by key: those of --set, then the `flags` that are not None. Raises
    UsageError for a --set that is not SECTION.KEY=VALUE."""
    overrides = dict(_split(text) for text in sets)
    return overrides | {key: value for key, value in (flags or {}).items() if value is not None}


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise UsageError(
            f"--set {text}: expected SECTION.KEY=VALUE", hint="for example --set server.port=9000"
        )
    return key.strip(), value
