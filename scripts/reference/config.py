"""Every key with its text, its bounds and its default: docs/reference/config.md, and
config/omlx.example.toml."""

import re
from collections.abc import Iterator
from itertools import groupby

from omlx_server.cli.config.show import as_toml, commented
from omlx_server.settings.layers import env_name
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.values import live, plain, words_of
from scripts.reference.markdown import block, escaped, table, whole_page

_ABOUT = """\
Every key of the config file. [Configuration](../configuration.md) tells where the file is, and
which of a flag, a variable of the environment and the file is stronger. `--set SECTION.KEY=VALUE`
sets any key for one start of the server."""
_EXAMPLE = """\
# Every setting of omlx-server, with its default. Copy it to one of these; the first found is used:
#
#   FILE of --config FILE                                    $OMLX_CONFIG
#   ~/.config/omlx_server/config.toml                        /etc/omlx_server/config.toml
#
# Keep only the lines that you change. A key can also come from the environment or a flag:
#
#   OMLX_SERVER__PORT=9000 omlx-server serve
#   omlx-server serve --set server.port=9000
#
# The flag wins over the environment, the environment over this file, this file over the default.
# `omlx-server config show --origin` prints what is in force and where each value came from.
# Made by `scripts/docs reference`.
"""
_COLUMNS = "  "
"""What a line begins with when it is one of a list."""


def page() -> str:
    return whole_page("Settings", _ABOUT, _parts())


def example() -> str:
    return "\n".join([_EXAMPLE, *_example_lines()]).rstrip() + "\n"


def _example_lines() -> Iterator[str]:
    for section, names in _names_by_section():
        yield f"[{section}]"
        for name in names:
            yield from commented(FIELDS[name].text)
            yield f"{name.partition('.')[2]} = {_default(name)}"
        yield ""


def _names_by_section() -> Iterator[tuple[str, Iterator[str]]]:
    return groupby(FIELDS, key=lambda name: name.partition(".")[0])


def _default(name: str) -> str:
    return as_toml(name, plain(FIELDS[name].default))


def _parts() -> Iterator[str]:
    for section, names in _names_by_section():
        yield f"## {section}"
        for name in names:
            yield f"### {name}"
            yield from _prose(FIELDS[name].text.splitlines())
            yield table(("", ""), _facts(name))


def _prose(lines: list[str]) -> Iterator[str]:
    """Paragraphs; the lines of a list stay as they stand."""
    for is_list, group in groupby(lines, key=lambda line: line.startswith(_COLUMNS)):
        text = "\n".join(group)
        yield block("text", text) if is_list else _linked(text)


def _linked(text: str) -> str:
    """Pages of the docs become links."""
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](../\1)", escaped(text))


def _facts(name: str) -> Iterator[tuple[str, str]]:
    yield "takes", words_of(FIELDS[name])
    yield "default", f"`{_default(name)}`"
    yield "environment", f"`{env_name(name)}`"
    yield "a change", live(name) or "counts from the next start on"
