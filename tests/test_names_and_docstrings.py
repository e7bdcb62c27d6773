"""The package in plain words: one name for one class, docstrings that say what a thing is."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "omlx_server"
# A sentence that begins so has its subject somewhere else.
RIDDLE = re.compile(
    r"(Of|As|Those|Such|The same|Who|What|Whose|So|One with|With|For what"
    r"|How (?:much|many|long|far)|That|Which)\b"
)
MOST_WORDS_A_LINE = 0.8

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> Iterator[tuple[Path, str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path.relative_to(PACKAGE), text, ast.parse(text)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict[str, list[str]](list)
    for path, _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_docstrings_begin_with_what_the_thing_is_or_does() -> None:
    riddles = [
        f"{path}:{line} {text.splitlines()[0]}"
        for path, _, tree in modules()
        for line, text in docstrings(tree)
        if RIDDLE.match(text)
    ]
    assert not riddles


def test_docstrings_are_short() -> None:
    lines = words = 0
    for _, text, tree in modules():
        lines += text.count("\n")
        words += sum(len(doc.split()) for _, doc in docstrings(tree))
    assert words <= MOST_WORDS_A_LINE * lines, f"{words} words in {lines} lines"
