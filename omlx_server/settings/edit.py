"""Changes one key of a config file at a time; its comments stay. Blocking. The file is written
whole or not at all."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx_server.errors import ConfigError, PlaceUnusable
from omlx_server.settings import layers
from omlx_server.settings.layers import check_text, read_config
from omlx_server.settings.override_keys import TABLE, find_override, is_override
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.toml_text import has_key, left_empty_by, table_at, with_value, without
from omlx_server.settings.types import own_place
from omlx_server.settings.values import SECRETS, LayerValue, parse_text, plain, read_value
from omlx_server.settings.whole_file import OTHERS, PRIVATE_DIRECTORY, PRIVATE_FILE, replacing

_OVERRIDES_PATH = TABLE.split(".")


def file_to_change(named: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the named file, which may not exist yet; else the one in use; else the user's."""
    path = layers.named_config(named, environ)
    return path or layers.find_config(None, environ) or own_place(layers.USER_CONFIG)


@dataclass(frozen=True, slots=True)
class Written:
    """A key's new value, secrets as stars. `was_open`: others could read the secret until now."""

    value: object
    was_open: bool


def set_key(path: Path, dotted: str, text: str) -> Written:
    """Set a key to a flag's text. A file with a secret gets mode 0600. Raises ConfigError for an
    unknown key or an invalid file, PlaceUnusable if the file can't be read or written."""
    change = _change(dotted, text, f"file {path}")
    new_text = _text_with(path, [change])
    is_secret = dotted in SECRETS and bool(change.value)
    was_open = is_secret and path.exists() and bool(path.stat().st_mode & OTHERS)
    write_config(path, new_text, is_private=is_secret)
    return Written(change.value if is_override(dotted) else plain(change.value), was_open)


def set_keys(path: Path, texts: Mapping[str, str]) -> None:
    """Set several keys that are no secrets, all or none. Raises as `set_key`."""
    changes = [_change(dotted, text, f"file {path}") for dotted, text in texts.items()]
    write_config(path, _text_with(path, changes))


def unset_key(path: Path, dotted: str) -> bool:
    """Remove a key, or all overrides of a model, and tables that are then empty. Return whether
    the file had it. Raises as `set_key`."""
    text = read_config(path) if path.exists() else ""
    values = layers.parse_toml(text, path)
    key_path = _key_path(dotted, table_at(values, _OVERRIDES_PATH))
    if not has_key(values, key_path):
        return False
    empty = left_empty_by(values, key_path) if is_override(dotted) else []
    changes = [_Change(removed, None, None) for removed in (key_path, *empty)]
    write_config(path, _text_with(path, changes))
    return True


def check_value(dotted: str, text: str) -> None:
    """Raise ConfigError if there is no such key, or it does not allow this text."""
    _change(dotted, text, "")


def set_alias(path: Path, name: str, target: str | None) -> None:
    """Set an alias, or remove it if `target` is None. Raises as `set_key`."""
    write_config(path, _text_with(path, [_Change(("models", "aliases", name), target, target)]))


@dataclass(frozen=True, slots=True)
class _Change:
    """A key of the file and its value there, None to remove it; `value` is that of the settings."""

    key_path: Sequence[str]
    toml_value: object
    value: object


def _change(dotted: str, text: str, origin: str) -> _Change:
    if is_override(dotted):
        key = find_override(dotted)
        override = key.read(text, origin)
        return _Change(key.path, override, override)
    key_path = _key_path(dotted)
    value = read_value(dotted, LayerValue(text, origin, is_text=True))
    return _Change(key_path, _toml_value(dotted, text), value)


def _key_path(dotted: str, models: Collection[str] | None = None) -> tuple[str, ...]:
    if is_override(dotted):
        return find_override(dotted, models).path
    layers.check_key(dotted, "")
    return tuple(dotted.split("."))


def _toml_value(dotted: str, text: str) -> object:
    """Return a flag's text as a config file has it: a size with its unit, for example."""
    default = FIELDS[dotted].default
    if isinstance(default, str):
        return int(text) if default == "auto" and re.fullmatch(r"\d{1,18}", text) else text
    return parse_text(text, FIELDS[dotted])


def _text_with(path: Path, changes: Iterable[_Change]) -> str:
    """Return the file's text with the changes, if they make a valid config."""
    before = after = read_config(path) if path.exists() else ""
    for change in changes:
        try:
            if change.toml_value is None:
                after = without(after, change.key_path)
            else:
                after = with_value(after, change.key_path, change.toml_value)
        except ValueError:  # tomllib's as well
            check_text(before, path)  # says where its TOML is wrong
            raise ConfigError(
                f"{'.'.join(change.key_path)} can't be changed in {path} without harm to the rest "
                "of it",
                hint="`omlx-server config edit` opens it in an editor",
            ) from None
    check_text(after, path)
    return after


def write_config(path: Path, text: str, *, is_private: bool = False) -> None:
    """Replace a config file. A new one, or one with `is_private`, gets mode 0600. Raises
    PlaceUnusable if it can't be written, ConfigError if the text is not UTF-8."""
    target = path.resolve()  # a link stays a link
    try:
        data = text.encode()
        target.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        keeps_mode = target.exists() and not is_private
        mode = target.stat().st_mode & 0o777 if keeps_mode else PRIVATE_FILE
        with replacing(target, mode) as file:
            file.write(data)
    except OSError as error:
        raise PlaceUnusable(f"{path} can't be written: {error.strerror or error}") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{path} can't be written: what is new in it is not UTF-8") from None
