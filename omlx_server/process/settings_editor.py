"""Shows and changes a running server's settings by its config file. asyncio thread."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from omlx_server.api.own.degraded import in_one_line
from omlx_server.api.settings_editor import ListedSetting, SettingsChanged, SettingsListed
from omlx_server.errors import BadRequest, ConfigError, Conflict, PlaceUnusable
from omlx_server.process.reload import Reloader
from omlx_server.settings import Loaded, edit
from omlx_server.settings.layers import read_config
from omlx_server.settings.override_keys import TABLE, is_override
from omlx_server.settings.sections import FIELDS, KEYS
from omlx_server.settings.values import (
    SECRETS,
    live,
    plain,
    schema_of,
    search_words_of,
    value_of,
    with_unit,
    words_of,
)

Kind = Literal["bool", "int", "float", "choice", "text", "list", "table"]

_OWN_MACHINE_ONLY = (
    *("auth.", "cluster.", "server.host", "server.uds"),
    *("server.allowed_hosts", "server.cors_origins"),
)
"""Beginnings of keys that decide who reaches the server or what it starts elsewhere."""
_KINDS: Mapping[str, Kind] = {
    "boolean": "bool",
    "integer": "int",
    "number": "float",
    "array": "list",
    "object": "table",
}
_WHY_BY_HAND = (
    "it decides who reaches the server or what it starts: `omlx-server config set` on the server's "
    "machine changes it"
)


class ConfigEditor:
    """Edits the config that `loaded` was read from, one change at a time. `end` restarts."""

    def __init__(
        self, loaded: Loaded, reloader: Reloader, end: Callable[[], None] | None = None
    ) -> None:
        self._loaded = loaded
        self._reloader = reloader
        self._end = end
        self._editing = asyncio.Lock()

    async def listed(self) -> SettingsListed:
        loaded = await self._read()
        waiting = self._reloader.needs_restart
        listed_keys = [key for key in KEYS if key not in SECRETS]
        return {
            "file": str(loaded.source.absolute()) if loaded.source else None,
            "can_restart": self._end is not None,
            "settings": [self._describe_setting(key, loaded, waiting) for key in listed_keys],
        }

    async def change(self, values: Mapping[str, Any]) -> SettingsChanged:
        async with self._editing:
            loaded = await self._read()
            texts = {key: _text_for_file(key, value, loaded) for key, value in values.items()}
            try:
                path = edit.file_to_change(loaded.named)
                text_before = await asyncio.to_thread(_write_settings, path, texts)
            except PlaceUnusable as error:
                raise Conflict(error.message) from None
            changed = await self._reloader.reload()
            if changed is None:
                await asyncio.to_thread(_restore_file, path, text_before)
                raise Conflict(f"nothing was changed: {self._reloader.problem}")
        waiting = self._reloader.needs_restart
        return {
            "applied": [key for key in values if key not in waiting],
            "needs_restart": [key for key in values if key in waiting],
        }

    async def reload(self) -> SettingsChanged:
        changed = await self._reloader.reload(quiet=True)
        if changed is None:
            raise Conflict(f"nothing was changed: {self._reloader.problem}")
        return {
            "applied": [change.key for change in changed.applied],
            "needs_restart": list(self._reloader.needs_restart),
        }

    def restart(self) -> SettingsChanged:
        if self._end is None:
            raise Conflict("no service manager would start this server again: restart it by hand")
        self._end()
        return {"applied": [], "needs_restart": list(self._reloader.needs_restart)}

    async def _read(self) -> Loaded:
        try:
            return await asyncio.to_thread(self._loaded.load_again)
        except ConfigError as error:
            raise Conflict(f"the config can't be used now: {error.message}") from None

    def _describe_setting(
        self, key: str, loaded: Loaded, waiting: tuple[str, ...]
    ) -> ListedSetting:
        field = FIELDS[key]
        schema = schema_of(field)
        value = value_of(self._reloader.settings, key)
        shape: ListedSetting = {
            "key": key,
            "value": plain(value),
            "default": plain(field.default),
            "text": with_unit(key, value),
            "default_text": with_unit(key, field.default),
            "origin": loaded.origins[key],
            "live": bool(live(key)),
            "needs_restart": key in waiting,
            "by_hand": _is_by_hand(key),
            "type": "choice" if "enum" in schema else _KINDS.get(str(schema.get("type")), "text"),
            "takes": "; ".join(filter(None, [words_of(field), live(key)])),
            "help": field.text,
            "search_words": search_words_of(key),
        }
        if "enum" in schema:
            shape["choices"] = schema["enum"]
        if "minimum" in schema:
            shape["least"] = schema["minimum"]
        if "maximum" in schema:
            shape["most"] = schema["maximum"]
        return shape


def _is_by_hand(key: str) -> bool:
    return key in SECRETS or key.startswith(_OWN_MACHINE_ONLY)


def _text_for_file(key: str, value: object, loaded: Loaded) -> str | None:
    """Return a value as a flag gives it. Raises BadRequest, or Conflict if a flag sets it."""
    if _is_by_hand(key):
        raise BadRequest(f"{key}: {_WHY_BY_HAND}", param=key)
    text = value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)
    try:
        edit.check_value(key, text)
    except ConfigError as error:
        raise BadRequest(in_one_line(error), param=key) from None
    origin = loaded.origins[TABLE if is_override(key) else key]
    if origin == "flag" or origin.startswith("env "):
        is_flag = origin == "flag"
        by = "a flag of the command line" if is_flag else f"the environment ({origin[4:]})"
        raise Conflict(f"{key} is set by {by}, which wins over the file", param=key)
    return text


def _write_settings(path: Path, texts: Mapping[str, str | None]) -> str | None:
    """Write the settings; return the file's text before. Raises BadRequest, PlaceUnusable."""
    text_before = read_config(path) if path.exists() else None
    try:
        edit.set_keys(path, texts)
    except PlaceUnusable:
        raise
    except ConfigError as error:
        raise BadRequest(error.message, param=next(iter(texts))) from None
    return text_before


def _restore_file(path: Path, text_before: str | None) -> None:
    if text_before is None:
        path.unlink(missing_ok=True)
    else:
        edit.write_config(path, text_before)
