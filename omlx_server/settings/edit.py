"""A config file changed by a program: one key at a time, and its comments stay.

A file is written whole or not at all, and only with a text that is valid. Blocking.
"""

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from omlx_server.errors import ConfigError, PlaceUnusable
from omlx_server.settings.layers import (
    USER_CONFIG,
    check_key,
    check_text,
    find_config,
    read_config,
)
from omlx_server.settings.override_keys import find_override, is_override
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.toml_text import with_value
from omlx_server.settings.types import expanded
from omlx_server.settings.values import SECRETS, Entry, checked, plain, typed

_PRIVATE_FILE = 0o600
_PRIVATE_DIRECTORY = 0o700
_OTHERS = 0o077


def file_to_change(named: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The file in use; where there is none, the one that was named, or the user's."""
    wanted = named or (Path(environ["OMLX_CONFIG"]) if environ.get("OMLX_CONFIG") else None)
    if wanted is not None:
        return wanted
    return find_config(None, environ) or expanded(USER_CONFIG)


@dataclass(frozen=True, slots=True)
class Written:
    """`value` as JSON can hold it, secrets as stars. `was_open`: others could read the file, and
    can't any more."""

    value: object
    was_open: bool


def set_key(path: Path, dotted: str, text: str) -> Written:
    """Set one key to what a flag of this text would mean. A file with a secret is its owner's only.

    Raises:
        ConfigError: there is no such key, or the file would not be valid with it.
    """
    origin = f"file {path}"
    names: tuple[str, ...]
    if is_override(dotted):
        key = find_override(dotted)
        names, value = key.path, key.checked(text, origin)
        written = value
    else:
        check_key(dotted, "")
        value = checked(dotted, Entry(text, origin, is_text=True))
        names, written = tuple(dotted.split(".")), _as_written(dotted, text)
    after = _changed(path, names, written)
    is_secret = dotted in SECRETS and bool(value)
    was_open = is_secret and path.exists() and bool(path.stat().st_mode & _OTHERS)
    write_config(path, after, is_private=is_secret)
    return Written(value if is_override(dotted) else plain(value), was_open)


def _changed(path: Path, names: tuple[str, ...], value: object) -> str:
    """The file's text with one value, valid."""
    before = read_config(path) if path.exists() else ""
    try:
        after = with_value(before, names, value)
    except ValueError:  # also of tomllib
        check_text(before, path)  # says where its TOML is wrong
        raise ConfigError(
            f"{'.'.join(names)} can't be changed in {path} without harm to the rest of it",
            hint="`omlx-server config edit` opens it in an editor",
        ) from None
    check_text(after, path)
    return after


def write_config(path: Path, text: str, *, is_private: bool = False) -> None:
    """Replace the file at once, or leave it. A new or private one is for its owner only.

    Raises:
        PlaceUnusable: it can't be written.
        ConfigError: the text can't be.
    """
    data = _encoded(path, text)
    target = path.resolve()  # a link stays a link
    temporary = None
    try:
        _make_directory(target.parent)
        keep = target.exists() and not is_private
        mode = target.stat().st_mode & 0o777 if keep else _PRIVATE_FILE
        number, temporary = tempfile.mkstemp(prefix=".config-", suffix=".toml", dir=target.parent)
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(number, mode)
            os.fsync(number)
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
        raise PlaceUnusable(f"{path} can't be written: {error.strerror or error}") from None


def _encoded(path: Path, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{path} can't be written: what is new in it is not UTF-8") from None


def _make_directory(directory: Path) -> None:
    if not directory.is_dir():
        directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True)


def _as_written(dotted: str, text: str) -> object:
    """Numbers and switches as such; a size with its unit, as the user wrote it."""
    default = FIELDS[dotted].default
    if isinstance(default, str):
        return int(text) if default == "auto" and re.fullmatch(r"\d{1,18}", text) else text
    return typed(text, default)
