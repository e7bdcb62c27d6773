"""docs/reference/config.md: every key with its bounds, its default, and the words of
config/omlx.example.toml about it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from omlx_server.settings.layers import env_name
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.values import live, words_of
from scripts.reference.markdown import block, escaped, table, whole_page

_EXAMPLE = Path(__file__).parent.parent.parent / "config" / "omlx.example.toml"
_ABOUT = """\
Every key of the config file. [Configuration](../configuration.md) tells where the file is, and
which of a flag, a variable of the environment and the file is stronger. `--set SECTION.KEY=VALUE`
sets any key for one start of the server."""
_LINE = re.compile(r"\[(?P<section>\w+)\]|(?P<key>\w+) = (?P<value>.*)|#(?: (?P<comment>.*))?")
_COLUMNS = "  "
"""What a comment's line begins with when it is one of a list."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A key as the example shows it."""

    comment: tuple[str, ...]
    value: str


def page() -> str:
    return whole_page("Settings", _ABOUT, _parts(_EXAMPLE.read_text(encoding="utf-8")))


def shown(example: str) -> dict[str, Shown]:
    """By SECTION.KEY. A comment is that of the next key; those before a section are of none."""
    found: dict[str, Shown] = {}
    section, lines = "", list[str]()
    for match in filter(None, map(_LINE.fullmatch, example.splitlines())):
        if match["section"]:
            section, lines = match["section"], []
        elif match["key"]:
            found[f"{section}.{match['key']}"] = Shown(tuple(lines), match["value"])
            lines = []
        else:
            lines.append(match["comment"] or "")
    return found


def _parts(example: str) -> Iterator[str]:
    keys = shown(example)
    for section, dotted in groupby(FIELDS, key=lambda name: name.partition(".")[0]):
        yield f"## {section}"
        for name in dotted:
            yield f"### {name}"
            yield from _prose(keys[name].comment)
            yield table(("", ""), _facts(name, keys[name]))


def _prose(lines: tuple[str, ...]) -> Iterator[str]:
    """Paragraphs; the lines of a list stay as they stand."""
    for is_list, group in groupby(lines, key=lambda line: line.startswith(_COLUMNS)):
        text = "\n".join(group)
        yield block("text", text) if is_list else _linked(text)


def _linked(text: str) -> str:
    """Pages of the docs become links."""
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](../\1)", escaped(text))


def _facts(name: str, key: Shown) -> Iterator[tuple[str, str]]:
    yield "takes", words_of(FIELDS[name])
    yield "default", f"`{key.value}`"
    yield "environment", f"`{env_name(name)}`"
    yield "a change", live(name) or "counts from the next start on"
