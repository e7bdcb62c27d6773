"""The first minute of a reader: few commands, and a page that is soon read."""

import re

from tests.docs.blocks import ROOT, blocks_of

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_first_screen_says_what_it_is_shows_it_and_how_to_get_and_install_it() -> None:
    first = next(blocks_of(README, "README.md"))
    lines = [line.partition("  #")[0].strip() for line in first.text.splitlines()]
    clone, *others = lines
    assert clone.startswith("git clone ")
    assert others == [
        "scripts/quickstart",
        "uv tool install . --constraints config/constraints.txt",
    ]
    title, *before = [line for line in README.splitlines()[: first.line - 1] if line]
    assert title == "# omlx_server"
    assert before[0].startswith("A server for language models")
    assert any(line.startswith("![") for line in before)
    words = " ".join(before)
    for said in ("Apple Silicon", "Llama, Qwen, Gemma", "MLX layout", "not oMLX"):
        assert said in words
    assert first.line <= 20


def test_ci_runs_the_test_command_that_it_names() -> None:
    before, _, developers = README.partition("## For developers")
    assert "scripts/test" in developers and "scripts/test" not in before
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"(?m)^scripts/test$", run)


def test_it_is_short() -> None:
    assert len(README.splitlines()) < 250


def test_no_line_of_its_words_is_too_wide() -> None:
    wide = [line for line in README.splitlines() if len(line) > 104 and not line.startswith("|")]
    assert [line for line in wide if not line.startswith("  -d")] == []
