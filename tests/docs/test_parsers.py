"""The table of families names every parser."""

from pathlib import Path

from omlx_server.core.model_files.parser_signs import REASONING_PARSERS, TOOL_PARSERS

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_every_parser_is_in_the_docs() -> None:
    answers = (DOCS / "answers.md").read_text("utf-8")
    configuration = (DOCS / "configuration.md").read_text("utf-8")
    assert not [name for name in TOOL_PARSERS if f"`{name}`" not in answers]
    assert not [name for name in REASONING_PARSERS if f"`{name}`" not in configuration]
