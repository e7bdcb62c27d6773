"""Commands within the sentences and tables of the pages: the program knows them and their options.

Their arguments may be placeholders, as in `omlx-server show NAME`, so they are not run.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from omlx_server.cli.app import app
from tests.docs.blocks import CODE, ROOT, pages
from tests.docs.commands import PROGRAM, sub_command

SPAN = re.compile(rf"`({PROGRAM} [^`]+)`")


def unknown_in(span: str) -> str:
    """The first word that the program does not know; empty where it knows all."""
    command: Any
    command, rest = sub_command(get_command(app), shlex.split(span)[1:])
    if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        return rest[0]
    known = {"--help", "-h"} | {
        name for p in command.params for name in (*p.opts, *p.secondary_opts)
    }
    options = (word.partition("=")[0] for word in rest if word.startswith("-") and word != "-")
    return next((option for option in options if option not in known), "")


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_in_sentences_are_known(page: Path) -> None:
    text = re.sub(r"\s+", " ", CODE.sub("", page.read_text(encoding="utf-8")))
    # A decision is not edited when a command gets another name.
    spans = () if page.parent.name == "decisions" else SPAN.findall(text)
    assert {span: word for span in spans if "…" not in span and (word := unknown_in(span))} == {}


@pytest.mark.parametrize(
    ("span", "word"),
    [
        ("omlx-server show NAME", ""),
        ("omlx-server config set auth.api_keys -", ""),
        ("omlx-server service", ""),
        ("omlx-server shwo NAME", "shwo"),
        ("omlx-server config sett", "sett"),
        ("omlx-server serve --prot 8001", "--prot"),
    ],
)
def test_what_the_program_does_not_know_is_seen(span: str, word: str) -> None:
    assert unknown_in(span) == word
