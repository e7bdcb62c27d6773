"""The first minute of a reader: two commands, which CI runs too, and a page that is soon read."""

import re

from tests.docs.blocks import ROOT, blocks_of

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_first_screen_says_what_it_is_shows_it_and_has_two_commands() -> None:
    first = next(blocks_of(README, "README.md"))
    assert first.text.splitlines() == ["scripts/quickstart", "scripts/test"]
    title, *before = [line for line in README.splitlines()[: first.line - 1] if line]
    assert title == "# omlx_server"
    assert before[0].startswith("A server for language models")
    assert any(line.startswith("![") for line in before)
    words = " ".join(before)
    for said in ("Apple Silicon", "Llama, Qwen, Gemma", "MLX layout", "not oMLX"):
        assert said in words
    assert first.line <= 20


def test_ci_runs_the_test_command_that_it_names() -> None:
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"(?m)^scripts/test$", run)


def test_it_is_short() -> None:
    assert len(README.splitlines()) < 250


def test_no_line_of_its_words_is_too_wide() -> None:
    wide = [line for line in README.splitlines() if len(line) > 104 and not line.startswith("|")]
    assert [line for line in wide if not line.startswith("  -d")] == []
