"""Changes one value in the text of a TOML file; all else in it stays, comments too. Pure."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Item, Table

# The length of the path to a key of models.overrides.NAME; keys of sections have shorter paths.
_DEEP = 4
_Way = Callable[[str, Sequence[str], object], str]


def with_value(text: str, path: Sequence[str], value: object) -> str:
    """`text` with one key set to `value`, or removed if that is None. `path` names the tables that
    lead to the key, and the key.

    Raises:
        ValueError: the text is no TOML, or other keys would change as well.
    """
    expected = _changed(tomllib.loads(text), path, value)
    # A heading that is there already can't come again.
    is_new_heading = len(path) >= _DEEP and value is not None
    ways: list[_Way] = [_below_a_heading, _in_place] if is_new_heading else [_in_place]
    for way in ways:
        with suppress(ValueError):
            after = way(text, path, value)
            if tomllib.loads(after) == expected:
                return after
    raise ValueError("another key would change")


def has_value(text: str, path: Sequence[str]) -> bool:
    """Whether the text sets the key, which `path` names as for `with_value`. Raises ValueError if
    the text is no TOML."""
    return _is_there(tomllib.loads(text), path)


def _changed(values: dict[str, Any], path: Sequence[str], value: object) -> dict[str, Any]:
    table = values
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ValueError(f"{name} is no table")
    _set(table, path[-1], value)
    return values


def _set(table: Any, name: str, value: object) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value


def _is_there(values: Mapping[str, Any], path: Sequence[str]) -> bool:
    found: Any = values
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return False
        found = found[name]
    return True


def _in_place(text: str, path: Sequence[str], value: object) -> str:
    """Set the key within the tables of the text. A missing section is added with a heading, a
    missing table below a section as an inline table."""
    try:
        document = tomlkit.parse(text)
        if path[0] not in document:
            document[path[0]] = _new_table(text)
        _put(document, path, value)
        return document.as_string()
    except (TOMLKitError, TypeError, AttributeError):
        raise ValueError("this TOML is not understood") from None


def _put(table: Any, path: Sequence[str], value: object) -> None:
    name, *rest = path
    inner = table.get(name, {})
    if not rest:
        _set(table, name, None if value is None else _item(value))
    elif name in table and (not isinstance(inner, InlineTable) or _is_there(inner, rest)):
        _put(inner, rest, value)
    else:  # tomlkit sets no space behind the comma of a key that is new in a line
        plain = inner.unwrap() if isinstance(inner, InlineTable) else {}
        table[name] = _item(_changed(plain, rest, value))


def _below_a_heading(text: str, path: Sequence[str], value: object) -> str:
    """Set the key below a new heading at the end of the text; tables in it become inline tables."""
    *heading, key = path[:_DEEP]
    for name in reversed(path[_DEEP:]):
        value = {name: value}
    newline = "\r\n" if "\r\n" in text else "\n"
    line = tomlkit.key(key).as_string(), _item(value).as_string()
    lines = [f"[{tomlkit.key(heading).as_string()}]", " = ".join(line), ""]
    gap = "" if not text.strip() else newline if text.endswith("\n") else 2 * newline
    return text + gap + newline.join(lines)


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
