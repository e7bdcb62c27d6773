"""Changes one key of a config file at a time; its comments stay. Blocking. The file is written
whole or not at all."""

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Item

from omlx_server.errors import ConfigError, PlaceUnusable
from omlx_server.settings import layers
from omlx_server.settings.layers import check_text, read_config
from omlx_server.settings.override_keys import TABLE, find_override, is_override
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.types import own_place
from omlx_server.settings.unknown_keys import check_key
from omlx_server.settings.values import SECRETS, LayerValue, parse_text, plain, read_value
from omlx_server.settings.whole_file import OTHERS, PRIVATE_DIRECTORY, PRIVATE_FILE, replacing

# The length of the path to a key of models.overrides.NAME; keys of sections have shorter paths.
_OVERRIDE_LENGTH = 4
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # `splitlines` also splits at U+2028
_OVERRIDES_PATH = TABLE.split(".")


def with_value(text: str, path: Sequence[str], value: object) -> str:
    """Set the key at `path`. Raises ValueError if the text is no TOML, or other keys would
    change."""
    expected = _changed(tomllib.loads(text), path, value)
    ways = [_edit_in_place]
    if len(path) >= _OVERRIDE_LENGTH:
        ways = [_append_heading, _edit_in_place]  # a heading that is there can't come twice
    for edit in ways:
        with suppress(ValueError):
            after = edit(text, path, value)
            if tomllib.loads(after) == expected:
                return after
    raise ValueError("another key would change")


def without(text: str, path: Sequence[str]) -> str:
    """Remove the key or table at `path`; comments outside of it stay. Raises as `with_value`."""
    if not has_key(tomllib.loads(text), path):
        return text
    expected = _without_empty(_changed(tomllib.loads(text), path, None), path)
    after = _without_headings(text, path)
    if has_key(tomllib.loads(after), path):
        after = _edit_in_place(after, path, None)
    if _without_empty(tomllib.loads(after), path) != expected:
        raise ValueError("another key would change")
    return after


def left_empty_by(values: Mapping[str, Any], path: Sequence[str]) -> list[Sequence[str]]:
    """Return the tables below a section that hold only the key at `path`, innermost first."""
    empty = list[Sequence[str]]()
    for length in range(len(path) - 1, 1, -1):
        if len(table_at(values, path[:length])) != 1:
            break
        empty.append(path[:length])
    return empty


def table_at(values: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    """Return the table at `path`; empty where there is none."""
    table: Any = values
    for name in path:
        table = table.get(name) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else {}


def has_key(values: Mapping[str, Any], path: Sequence[str]) -> bool:
    return path[-1] in table_at(values, path[:-1])


def _changed(values: dict[str, Any], path: Sequence[str], value: object) -> dict[str, Any]:
    """Set the key at `path` in `values`, or remove it for None, and return them."""
    table = values
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ValueError(f"{name} is no table")
    _set_or_remove(table, path[-1], value)
    return values


def _set_or_remove(table: Any, name: str, value: object) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value


def _without_empty(values: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Remove the empty tables on the way to `path` from `values`, and return them."""
    for length in range(len(path) - 1, 0, -1):
        *above, name = path[:length]
        table = table_at(values, above)
        if isinstance(table, dict) and table.get(name) == {}:
            del table[name]
    return values


def _edit_in_place(text: str, path: Sequence[str], value: object) -> str:
    """Set or remove the key where it is, or at the end of its table."""
    try:
        document = tomlkit.parse(text)
        if path[0] not in document:
            table = tomlkit.table()
            if text.strip():
                table.trivia.indent = "\n"  # an empty line before the heading
            document[path[0]] = table
        _put(document, path, value)
        return document.as_string()
    except (TOMLKitError, TypeError, AttributeError):
        raise ValueError("this TOML is not understood") from None


def _put(table: Any, path: Sequence[str], value: object) -> None:
    name, *inner_path = path
    inner = table.get(name, {})
    if not inner_path:
        _set_or_remove(table, name, None if value is None else _item(value))
    elif name in table and (not isinstance(inner, InlineTable) or has_key(inner, inner_path)):
        _put(inner, inner_path, value)
    else:  # tomlkit puts no space before a key that is new in an inline table
        inner_values = inner.unwrap() if isinstance(inner, InlineTable) else {}
        table[name] = _item(_changed(inner_values, inner_path, value))


def _without_headings(text: str, path: Sequence[str]) -> str:
    """Remove the tables at and below `path` that have a heading. Comments behind their last key
    stay: they may be about what follows."""
    result: list[str] = []
    is_removed = False
    for heading, lines in _blocks(text):
        is_removed = heading[: len(path)] == tuple(path)
        if is_removed:
            lines = lines[_end_of_keys(lines) :]
            if not result or not result[-1].strip():
                lines = list(dropwhile(lambda line: not line.strip(), lines))
        result += lines
    # Behind a removed last table no empty lines stay.
    while is_removed and result and not result[-1].strip():
        result.pop()
    return "".join(result)


def _end_of_keys(lines: Sequence[str]) -> int:
    """Return the number of lines up to the last key of a block."""
    least = max(count for count, line in enumerate(lines, 1) if line.partition("#")[0].strip())
    # A multi-line text may end in a line that begins with a #.
    ends = (end for end in range(least, len(lines)) if _is_toml("".join(lines[:end])))
    return next(ends, len(lines))


def _blocks(text: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the lines of each heading, with its path; first those before any heading."""
    lines = _LINE.findall(text)
    path: tuple[str, ...] = ()
    begin = 0
    for number, line in enumerate(lines):
        # Inside a multi-line text it is no heading: the lines before it are no TOML.
        if line.lstrip().startswith("[") and _is_toml("".join(lines[begin:number])):
            yield path, lines[begin:number]
            path, begin = _path_of(line), number
    yield path, lines[begin:]


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except ValueError:
        return False
    return True


def _path_of(heading: str) -> tuple[str, ...]:
    """Return the path of a table's heading; () for an array of tables."""
    names = []
    table: Any = tomllib.loads(heading)
    while table:
        if not isinstance(table, dict):
            return ()
        ((name, table),) = table.items()
        names.append(name)
    return tuple(names)


def _append_heading(text: str, path: Sequence[str], value: object) -> str:
    """Append a table for a model's overrides, with the value as its only key."""
    *heading, key = path[:_OVERRIDE_LENGTH]
    for name in reversed(path[_OVERRIDE_LENGTH:]):
        value = {name: value}
    newline = "\r\n" if "\r\n" in text else "\n"
    key_line = f"{tomlkit.key(key).as_string()} = {_item(value).as_string()}"
    lines = [f"[{tomlkit.key(heading).as_string()}]", key_line, ""]
    gap = ""
    if text.strip():
        gap = newline if text.endswith("\n") else 2 * newline
    return text + gap + newline.join(lines)


def _item(value: object) -> Item:
    """Return a value for tomlkit; a table is inline."""
    if not isinstance(value, Mapping):
        return tomlkit.item(value)
    table = tomlkit.inline_table()
    for key, inner in value.items():
        table.append(key, _item(inner))
    return table


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


def set_keys(path: Path, texts: Mapping[str, str | None]) -> None:
    """Set keys that are no secrets, or remove them for None; all or none. Raises as `set_key`."""
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


def check_value(dotted: str, text: str | None) -> None:
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


def _change(dotted: str, text: str | None, origin: str) -> _Change:
    if text is None:
        return _Change(_key_path(dotted), None, None)
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
    check_key(dotted, "")
    return tuple(dotted.split("."))


def _toml_value(dotted: str, text: str) -> object:
    """Return a flag's text as a config file has it: a size with its unit, for example."""
    default = FIELDS[dotted].default
    if isinstance(default, str):
        return int(text) if default in ("auto", "off") and re.fullmatch(r"\d{1,18}", text) else text
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
