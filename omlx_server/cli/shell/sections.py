"""In which order and under which headings the help of the program shows its commands.

A command that no section names comes last, under "More"; a test holds that there is none.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from typer.core import TyperGroup

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Start": ("up", "serve", "chat", "launch"),
    "Models": ("pull", "list", "show", "ps", "load", "unload", "pin", "unpin", "alias", "rm"),
    "Look": ("status", "bench", "doctor", "version"),
    "Manage": ("config", "cache", "service"),
}


def sections_of(names: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Headings with those of the names that stand below them; no empty ones."""
    named = {name for section in SECTIONS.values() for name in section}
    rest = tuple(name for name in names if name not in named)
    for heading, members in (*SECTIONS.items(), ("More", rest)):
        present = [name for name in members if name in names]
        if present:
            yield heading, present


class SectionedGroup(TyperGroup):
    """The root: its help has one list of commands for each section."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        names = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        # All lists get the column of the longest name.
        widest = max(map(len, names))
        for heading, members in sections_of(names):
            limit = formatter.width - 4 - widest
            rows = [
                (name.ljust(widest), self.commands[name].get_short_help_str(limit))
                for name in members
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)
