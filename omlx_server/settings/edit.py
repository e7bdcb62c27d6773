"""A config file changed by a program: one key at a time, and its comments stay.

A file is written whole or not at all, and only with a text that is valid. Blocking.
"""

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Item, Table

from omlx_server.errors import ConfigError
from omlx_server.settings.layers import (
    USER_CONFIG,
    check_key,
    check_text,
    find_config,
    read_config,
)
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.types import expanded
from omlx_server.settings.values import Entry, checked, typed

_PRIVATE_FILE = 0o600
_PRIVATE_DIRECTORY = 0o700


def file_to_change(named: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The file in use; where there is none, the one that was named, or the user's."""
    wanted = named or (Path(environ["OMLX_CONFIG"]) if environ.get("OMLX_CONFIG") else None)
    if wanted is not None:
        return wanted
    return find_config(None, environ) or expanded(USER_CONFIG)


def set_key(path: Path, dotted: str, text: str) -> object:
    """Set one key to what a flag of this text would mean. Returns the value, secrets wrapped.

    Raises:
        ConfigError: there is no such key, or the file would not be valid with it.
    """
    check_key(dotted, "")
    value = checked(dotted, Entry(text, f"file {path}", is_text=True))
    before = read_config(path) if path.exists() else ""
    after = with_key(before, dotted, _as_written(dotted, text), path)
    check_text(after, path)
    write_config(path, after)
    return value


def with_key(text: str, dotted: str, value: object, path: Path) -> str:
    """`text` with one key changed, and nothing else."""
    section, _, key = dotted.partition(".")
    try:
        document = tomlkit.parse(text)
        if section not in document:
            document.add(section, _new_table(text))
        table = document[section]
        if not isinstance(table, Mapping):
            raise ConfigError(f"{section}: expected a table [{section}] (file {path})")
        table[key] = _item(value)  # type: ignore[index]
        after = document.as_string()
        _check_only(text, after, section, key)
    except (TOMLKitError, tomllib.TOMLDecodeError, ValueError):
        check_text(text, path)  # says where its TOML is wrong
        raise ConfigError(
            f"{dotted} can't be changed in {path} without harm to the rest of it",
            hint="`omlx-server config edit` opens it in an editor",
        ) from None
    return after


def write_config(path: Path, text: str) -> None:
    """Replace the file at once, or leave it. A new one is for its owner only.

    Raises:
        ConfigError: it can't be written.
    """
    target = path.resolve()  # a link stays a link
    temporary = None
    try:
        _make_directory(target.parent)
        mode = target.stat().st_mode & 0o777 if target.exists() else _PRIVATE_FILE
        number, temporary = tempfile.mkstemp(prefix=".config-", suffix=".toml", dir=target.parent)
        with os.fdopen(number, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fchmod(number, mode)
            os.fsync(number)
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
        raise ConfigError(f"{path} can't be written: {error.strerror or error}") from None


def _make_directory(directory: Path) -> None:
    if not directory.is_dir():
        directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True)


def _as_written(dotted: str, text: str) -> object:
    """Numbers and switches as such; a size with its unit, as the user wrote it."""
    default = FIELDS[dotted].get_default(call_default_factory=True)
    if isinstance(default, str):
        return int(text) if default == "auto" and re.fullmatch(r"\d{1,18}", text) else text
    return typed(text, default)


def _item(value: object) -> Item:
    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        for key, inner in value.items():
            table.append(key, _item(inner))
        return table
    return tomlkit.item(value)


def _new_table(text: str) -> Table:
    table = tomlkit.table()
    if text.strip():
        table.trivia.indent = "\n"
    return table


def _check_only(before: str, after: str, section: str, key: str) -> None:
    """Raises ValueError if more than the one key has changed."""
    old, new = tomllib.loads(before), tomllib.loads(after)
    for document in (old, new):
        document.setdefault(section, {}).pop(key, None)
    if old != new:
        raise ValueError("another key has changed")
