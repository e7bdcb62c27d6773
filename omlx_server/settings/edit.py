"""Changes one key of a config file at a time; its comments stay. Blocking. The file is written
whole or not at all."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx_server.errors import ConfigError, PlaceUnusable
from omlx_server.settings.layers import (
    USER_CONFIG,
    check_key,
    check_text,
    find_config,
    named_config,
    parse_toml,
    read_config,
)
from omlx_server.settings.override_keys import TABLE, find_override, is_override
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.toml_text import has_key, left_empty_by, table_at, with_value, without
from omlx_server.settings.types import own_place
from omlx_server.settings.values import SECRETS, LayerValue, checked, plain, typed
from omlx_server.settings.whole_file import OTHERS, PRIVATE_DIRECTORY, PRIVATE_FILE, replacing

_OVERRIDES = TABLE.split(".")


def file_to_change(named: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the named file, which may not exist yet; else the one in use; else the user's."""
    path = named_config(named, environ)
    return path or find_config(None, environ) or own_place(USER_CONFIG)


@dataclass(frozen=True, slots=True)
class Written:
    """The new value, secrets as stars. `was_open`: others could read the secret until now."""

    value: object
    was_open: bool


def set_key(path: Path, dotted: str, text: str) -> Written:
    """Set a key to a flag's text. A file with a secret gets mode 0600. Raises ConfigError for an
    unknown key or an invalid file, PlaceUnusable if the file can't be read or written."""
    new = _new_value(dotted, text, f"file {path}")
    after = _text_with(path, [new])
    is_secret = dotted in SECRETS and bool(new.value)
    was_open = is_secret and path.exists() and bool(path.stat().st_mode & OTHERS)
    write_config(path, after, is_private=is_secret)
    return Written(new.value if is_override(dotted) else plain(new.value), was_open)


def set_keys(path: Path, texts: Mapping[str, str]) -> None:
    """Set several keys that are no secrets, all or none. Raises as `set_key`."""
    changes = [_new_value(dotted, text, f"file {path}") for dotted, text in texts.items()]
    write_config(path, _text_with(path, changes))


def unset_key(path: Path, dotted: str) -> bool:
    """Remove a key, or all overrides of a model, and tables that are then empty. Return whether
    the file had it. Raises as `set_key`."""
    text = read_config(path) if path.exists() else ""
    values = parse_toml(text, path)
    names = _names(dotted, table_at(values, _OVERRIDES))
    if not has_key(values, names):
        return False
    empty = left_empty_by(values, names) if is_override(dotted) else []
    write_config(path, _text_with(path, [_NewValue(gone, None, None) for gone in (names, *empty)]))
    return True


def check_value(dotted: str, text: str) -> None:
    """Raise ConfigError if there is no such key, or it does not allow this text."""
    _new_value(dotted, text, "")


def set_alias(path: Path, name: str, target: str | None) -> None:
    """Set an alias, or remove it if `target` is None. Raises as `set_key`."""
    write_config(path, _text_with(path, [_NewValue(("models", "aliases", name), target, target)]))


@dataclass(frozen=True, slots=True)
class _NewValue:
    """A new value: its path and form in the file (None: removed), and in the settings."""

    names: Sequence[str]
    written: object
    value: object


def _new_value(dotted: str, text: str, origin: str) -> _NewValue:
    if is_override(dotted):
        key = find_override(dotted)
        value = key.checked(text, origin)
        return _NewValue(key.path, value, value)
    names = _names(dotted)
    value = checked(dotted, LayerValue(text, origin, is_text=True))
    return _NewValue(names, _as_written(dotted, text), value)


def _names(dotted: str, models: Collection[str] | None = None) -> tuple[str, ...]:
    if is_override(dotted):
        return find_override(dotted, models).path
    check_key(dotted, "")
    return tuple(dotted.split("."))


def _text_with(path: Path, values: Iterable[_NewValue]) -> str:
    before = after = read_config(path) if path.exists() else ""
    for change in values:
        try:
            if change.written is None:
                after = without(after, change.names)
            else:
                after = with_value(after, change.names, change.written)
        except ValueError:  # tomllib's as well
            check_text(before, path)  # says where its TOML is wrong
            raise ConfigError(
                f"{'.'.join(change.names)} can't be changed in {path} without harm to the rest of "
                "it",
                hint="`omlx-server config edit` opens it in an editor",
            ) from None
    check_text(after, path)
    return after


def write_config(path: Path, text: str, *, is_private: bool = False) -> None:
    """A new file, or one with `is_private`, gets mode 0600. Raises PlaceUnusable if it can't be
    written, ConfigError if the text is not UTF-8."""
    target = path.resolve()  # a link stays a link
    try:
        data = text.encode()
        target.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        keep = target.exists() and not is_private
        mode = target.stat().st_mode & 0o777 if keep else PRIVATE_FILE
        with replacing(target, mode) as file:
            file.write(data)
    except OSError as error:
        raise PlaceUnusable(f"{path} can't be written: {error.strerror or error}") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{path} can't be written: what is new in it is not UTF-8") from None


def _as_written(dotted: str, text: str) -> object:
    default = FIELDS[dotted].default
    if isinstance(default, str):
        return int(text) if default == "auto" and re.fullmatch(r"\d{1,18}", text) else text
    return typed(text, FIELDS[dotted])
