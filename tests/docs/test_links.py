"""Links in README, other pages of the root and docs/: what they name is there, anchors too."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify, unique

from tests.docs.blocks import CODE, ROOT, pages

PAGES = [*pages(), *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"))]
LINK = re.compile(r"(?<!!)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
SPAN = re.compile(r"`[^`\n]+`")
ELSEWHERE = ("http://", "https://", "mailto:")


def links(text: str) -> Iterator[str]:
    """Those to what is here. Code holds none, but a name in code may be a link's."""
    for target in LINK.findall(SPAN.sub("code", CODE.sub("", text))):
        if not target.startswith(ELSEWHERE):
            yield target


def anchors(path: Path) -> set[str]:
    """As MkDocs and GitHub make them of headings."""
    used: set[str] = set()
    for line in CODE.sub("", path.read_text(encoding="utf-8")).splitlines():
        heading = re.fullmatch(r"#+ (.+)", line)
        if heading:
            plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading[1])
            unique(slugify(plain, "-"), used)
    return used


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(path), f"{page.name}: {target}"


def test_the_site_has_no_link_that_leaves_it() -> None:
    """MkDocs knows docs/ alone."""
    for page in pages()[1:]:
        for target in links(page.read_text(encoding="utf-8")):
            path = (page.parent / target.partition("#")[0]).resolve()
            assert path.is_relative_to((ROOT / "docs").resolve()), f"{page}: {target}"


def test_links_are_found() -> None:
    text = "[a](b.md) [`c`](d.md#e) [x](https://y)\n\n```sh\n[no](code.md)\n```\n[two\nlines](f.md)"
    assert list(links(text)) == ["b.md", "d.md#e", "f.md"]
