"""Changes one value in the text of a TOML file; all else stays, comments too."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import dropwhile
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Item, Table

# The length of the path to a key of models.overrides.NAME; keys of sections have shorter paths.
_DEEP = 4
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # `splitlines` also splits at U+2028
_Way = Callable[[str, Sequence[str], object], str]


def with_value(text: str, path: Sequence[str], value: object) -> str:
    """Raises ValueError if the text is no TOML, or other keys would change."""
    expected = _changed(tomllib.loads(text), path, value)
    # A heading can't come twice.
    ways: list[_Way] = [_below_a_heading, _in_place] if len(path) >= _DEEP else [_in_place]
    for way in ways:
        with suppress(ValueError):
            after = way(text, path, value)
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
        after = _in_place(after, path, None)
    if _without_empty(tomllib.loads(after), path) != expected:
        raise ValueError("another key would change")
    return after


def left_empty_by(values: Mapping[str, Any], path: Sequence[str]) -> list[Sequence[str]]:
    """Return the tables that hold nothing but the key at `path`, innermost first; no section."""
    empty = list[Sequence[str]]()
    for length in range(len(path) - 1, 1, -1):
        if len(table_at(values, path[:length])) != 1:
            break
        empty.append(path[:length])
    return empty


def table_at(values: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    table: Any = values
    for name in path:
        table = table.get(name) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else {}


def has_key(values: Mapping[str, Any], path: Sequence[str]) -> bool:
    return path[-1] in table_at(values, path[:-1])


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


def _without_empty(values: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    for length in range(len(path) - 1, 0, -1):
        *above, name = path[:length]
        table = table_at(values, above)
        if isinstance(table, dict) and table.get(name) == {}:
            del table[name]
    return values


def _in_place(text: str, path: Sequence[str], value: object) -> str:
    try:
        document = tomlkit.parse(text)
        if path[0] not in document:
            document[path[0]] = _new_table(text)
        _put(document, path, value)
        return document.as_string()
    except (TOMLKitError, TypeError, AttributeError):
        raise ValueError("this TOML is not understood") from None


def _put(table: Any, path: Sequence[str], value: object) -> None:
    name, *inner_path = path
    inner = table.get(name, {})
    if not inner_path:
        _set(table, name, None if value is None else _item(value))
    elif name in table and (not isinstance(inner, InlineTable) or has_key(inner, inner_path)):
        _put(inner, inner_path, value)
    else:  # tomlkit puts no space before a key that is new in an inline table
        plain = inner.unwrap() if isinstance(inner, InlineTable) else {}
        table[name] = _item(_changed(plain, inner_path, value))


def _without_headings(text: str, path: Sequence[str]) -> str:
    """Comments behind the last key stay: they may be about what follows."""
    result: list[str] = []
    was_last = False
    for heading, lines in _blocks(text):
        was_last = heading[: len(path)] == tuple(path)
        if was_last:
            lines = lines[_end_of_keys(lines) :]
            if not result or not result[-1].strip():
                lines = list(dropwhile(lambda line: not line.strip(), lines))
        result += lines
    while was_last and result and not result[-1].strip():
        result.pop()
    return "".join(result)


def _end_of_keys(lines: Sequence[str]) -> int:
    least = max(at for at, line in enumerate(lines, 1) if line.partition("#")[0].strip())
    # A multi-line text may end in a line that begins with a #.
    ends = (end for end in range(least, len(lines)) if _is_toml("".join(lines[:end])))
    return next(ends, len(lines))


def _blocks(text: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    lines = _LINE.findall(text)
    heading: tuple[str, ...] = ()
    begin = 0
    for at, line in enumerate(lines):
        # Inside a multi-line text it is no heading: the lines before it are no TOML.
        if line.lstrip().startswith("[") and _is_toml("".join(lines[begin:at])):
            yield heading, lines[begin:at]
            heading, begin = _path_of(line), at
    yield heading, lines[begin:]


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except ValueError:
        return False
    return True


def _path_of(heading: str) -> tuple[str, ...]:
    names = []
    inner: Any = tomllib.loads(heading)
    while inner:
        if not isinstance(inner, dict):
            return ()
        ((name, inner),) = inner.items()
        names.append(name)
    return tuple(names)


def _below_a_heading(text: str, path: Sequence[str], value: object) -> str:
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
