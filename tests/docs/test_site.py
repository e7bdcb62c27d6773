"""The site of docs/ builds without a warning, and asks nobody else for anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

SOURCE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](https?://[^"']+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    wanted = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    for path in wanted:
        name = "index.html" if path.name == "README.md" else path.with_suffix(".html").name
        assert (site / path.parent / name).is_file(), path


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert SOURCE.findall(text) == [], page
        assert "fonts.g" not in text


def test_decisions_are_in_the_navigation(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"):
        assert f"decisions/{path.stem}.html" in text
