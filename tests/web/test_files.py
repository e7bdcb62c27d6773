"""What can be said of the page's files without a browser."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "omlx_server" / "web"
VENDOR = FOLDER / "vendor"
VENDORED = json.loads((VENDOR / "vendored.json").read_text(encoding="utf-8"))
OWN = sorted(
    path
    for path in FOLDER.rglob("*")
    if path.suffix in (".js", ".css", ".html") and VENDOR not in path.parents
)
MOST_COMPRESSED = 450_000
LONGEST_FILE = 400
LONGEST_LINE = 100
ELSEWHERE = re.compile(r"""(?:src|href|from|import|url\()\s*[=(]?\s*["'`]?(?:https?:)?//""")


@pytest.mark.parametrize("entry", VENDORED, ids=lambda entry: entry["file"])
def test_a_vendored_file_is_as_it_was_published(entry: dict[str, str]) -> None:
    data = (VENDOR / entry["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    assert entry["version"] in entry["file"]
    assert all((VENDOR / name).is_file() for name in entry["licence_files"])


def test_every_vendored_file_is_named_with_its_licence() -> None:
    named = {entry["file"] for entry in VENDORED}
    named |= {name for entry in VENDORED for name in entry["licence_files"]}
    assert {path.name for path in VENDOR.iterdir()} == named | {"vendored.json"}


def test_all_of_the_page_is_small() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    compressed = sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in files)
    assert compressed < MOST_COMPRESSED, compressed


@pytest.mark.parametrize("path", OWN, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_file_of_ours_is_short_and_names_no_other_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= LONGEST_FILE
    if path.suffix == ".js":
        assert max(map(len, lines)) <= LONGEST_LINE
    assert not ELSEWHERE.search(text)
    assert not re.search(r"\son\w+=\"|<script>|dangerouslySetInnerHTML|innerHTML|eval\(", text)


def test_no_space_before_or_after_a_link_is_lost() -> None:
    """htm drops the white space at a line's end."""
    lost = re.compile(r"[\w,.;:]\n\s*<(?:a|bdi|code|span|strong)\b|</(?:a|bdi|code|strong)>\n\s*\w")
    for path in OWN:
        assert path.suffix != ".js" or not lost.search(path.read_text(encoding="utf-8")), path


def test_every_import_leads_to_a_file() -> None:
    for path in OWN:
        if path.suffix != ".js":
            continue
        for name in re.findall(r'(?:from |import\()"([^"]+)"', path.read_text(encoding="utf-8")):
            assert (path.parent / name).resolve().is_file(), f"{path}: {name}"
