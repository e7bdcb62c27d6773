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
        """Whether an applied key is one of `names`, or in a section of `names`."""
        return any(c.key in names or c.key.partition(".")[0] in names for c in self.applied)

    def __str__(self) -> str:
        applied = ", ".join(map(str, self.applied)) or "nothing has changed"
        waiting = ", ".join(map(str, self.needs_restart))
        return f"{applied}; needs a restart: {waiting}" if waiting else applied


def changes(old: Settings, new: Loaded) -> Changes:
    """Return the changes. Raises ConfigError if new values contradict old ones that stay until a
    restart, or all API keys are gone."""
    different = [key for key in KEYS if value_of(old, key) != value_of(new.settings, key)]
    applied = [key for key in different if _applies(key, old, new.settings)]
    in_force = _in_force(old, new.settings, applied)
    _keys_are_not_lost(old, new)
    return Changes(
        tuple(_change(key, old, new.settings) for key in applied),
        tuple(_change(key, old, new.settings) for key in different if key not in applied),
        in_force,
    )


def _keys_are_not_lost(old: Settings, new: Loaded) -> None:
    """Raise ConfigError if a config, perhaps half written, would open a server that has API
    keys."""
    if old.auth.api_keys and new.origins["auth.api_keys"] == "default":
        raise ConfigError(
            "auth.api_keys is not in the config any more, and without keys everybody could use the "
            "server",
            hint="if that is meant, write `api_keys = []` below [auth], or restart the server",
        )


def _applies(key: str, old: Settings, new: Settings) -> bool:
    """cache.hot_cache_only can only be turned on, as the cold tier's state is unknown after a
    time without it, and not while responses are on disk."""
    if key == "cache.hot_cache_only":
        return new.cache.hot_cache_only and old.responses.store != "disk"
    return bool(live(key))


def _in_force(old: Settings, new: Settings, applied: list[str]) -> Settings:
    try:
        return Settings.of({name: _part(name, section, new, applied) for name, section in old})
    except ConfigError as error:
        raise ConfigError(
            f"{error.message}, as long as the server runs", hint="what else is new needs a restart"
        ) from None


def _part(name: str, old: Section, new: Settings, applied: list[str]) -> Section:
    keys = [key for key, _ in old if f"{name}.{key}" in applied]
    return replace(old, **{key: value_of(new, f"{name}.{key}") for key in keys})


def _change(key: str, old: Settings, new: Settings) -> SettingChange:
    return SettingChange(key, _written(key, value_of(old, key)), _written(key, value_of(new, key)))


def _written(dotted: str, value: object) -> str:
    if is_size(dotted) and isinstance(value, int):
        return format_size(value)
    return json.dumps(plain(value), ensure_ascii=False)
