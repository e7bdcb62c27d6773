"""Compares a changed config with the settings in force. Pure."""

import json
from dataclasses import dataclass

from msgspec.structs import replace

from omlx_server.errors import ConfigError
from omlx_server.settings.fields import Section
from omlx_server.settings.layers import Loaded
from omlx_server.settings.sections import KEYS, Settings
from omlx_server.settings.types import format_size
from omlx_server.settings.values import is_size, live, plain, value_of


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A changed key, with its values as a config file has them; secrets are stars."""

    key: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.key} {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that apply at once, those that need a restart, and the settings `in_force`."""

    applied: tuple[SettingChange, ...]
    needs_restart: tuple[SettingChange, ...]
    in_force: Settings

    def touch(self, *names: str) -> bool:
        """Return whether a change that applies is of one of these keys or sections."""
        return any(c.key in names or c.key.partition(".")[0] in names for c in self.applied)

    def __str__(self) -> str:
        applied = ", ".join(map(str, self.applied)) or "nothing has changed"
        waiting = ", ".join(map(str, self.needs_restart))
        return f"{applied}; needs a restart: {waiting}" if waiting else applied


def changes(old: Settings, new: Loaded) -> Changes:
    """Return the changes. Raises ConfigError if new values contradict old ones that stay until a
    restart, or all API keys are gone."""
    different = [key for key in KEYS if value_of(old, key) != value_of(new.settings, key)]
    applied = [key for key in different if _applies_at_once(key, old, new.settings)]
    in_force = _settings_in_force(old, new.settings, applied)
    _check_api_keys_are_not_lost(old, new)
    return Changes(
        tuple(_change(key, old, new.settings) for key in applied),
        tuple(_change(key, old, new.settings) for key in different if key not in applied),
        in_force,
    )


def _check_api_keys_are_not_lost(old: Settings, new: Loaded) -> None:
    """Raise ConfigError if a config, perhaps half written, would open a server that has API
    keys."""
    if old.auth.api_keys and new.origins["auth.api_keys"] == "default":
        raise ConfigError(
            "auth.api_keys is not in the config any more, and without keys everybody could use the "
            "server",
            hint="if that is meant, write `api_keys = []` below [auth], or restart the server",
        )


def _applies_at_once(key: str, old: Settings, new: Settings) -> bool:
    if key == "cache.hot_cache_only":
        # It can only be turned on, as the cold tier's state is unknown after a time without it,
        # and not while responses are on disk.
        return new.cache.hot_cache_only and old.responses.store != "disk"
    return bool(live(key))


def _settings_in_force(old: Settings, new: Settings, applied: list[str]) -> Settings:
    """Return the old settings with the new values of the `applied` keys."""
    sections: dict[str, Section] = {}
    try:
        for name, section in old:
            keys = [key for key, _ in section if f"{name}.{key}" in applied]
            values = {key: value_of(new, f"{name}.{key}") for key in keys}
            sections[name] = replace(section, **values)
        return Settings.of(sections)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message}, as long as the server runs", hint="what else is new needs a restart"
        ) from None


def _change(key: str, old: Settings, new: Settings) -> SettingChange:
    return SettingChange(key, _shown(key, value_of(old, key)), _shown(key, value_of(new, key)))


def _shown(key: str, value: object) -> str:
    if is_size(key) and isinstance(value, int):
        return format_size(value)
    return json.dumps(plain(value), ensure_ascii=False)
