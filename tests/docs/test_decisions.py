"""The index of decisions: each is in it, and one that names a file which has gone says so."""

import re

from tests.docs.blocks import ROOT

FOLDER = ROOT / "docs" / "decisions"
PLACES = (ROOT, ROOT / "omlx_server", ROOT / "docs")
PATH = re.compile(r"`([a-z_][\w./]*/[\w./]*(?:\.py|/))`")


def test_the_index_names_each_and_marks_those_whose_files_have_gone() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"\| \[\d+\]\(([^)]+)\) \| [^|]+ \| ([^|]*)\|", index))
    decisions = sorted(FOLDER.glob("[0-9]*.md"))
    assert sorted(rows) == [path.name for path in decisions]
    for path in decisions:
        named = PATH.findall(path.read_text(encoding="utf-8"))
        gone = [name for name in named if not any((place / name).exists() for place in PLACES)]
        assert not gone or rows[path.name].strip(), f"{path.name} names {gone}"
