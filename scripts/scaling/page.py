"""docs/scaling.md: text by hand, with a table between two comments for each section."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "scaling.md"


def begin(name: str) -> str:
    """The comment before a table."""
    return f"<!-- {name}: made by python -m scripts.scaling {name} -->"


def end(name: str) -> str:
    """The comment behind a table."""
    return f"<!-- end of {name} -->"


def table_of(text: str, name: str) -> str:
    """The table of a section in the text of the page. Raises ValueError where there is none."""
    found = re.search(f"{re.escape(begin(name))}\n\n(.*?)\n\n{re.escape(end(name))}", text, re.S)
    if found is None:
        raise ValueError(f"the page has no section {name!r}")
    return found[1]


def replaced(text: str, name: str, table: str) -> str:
    """The text of the page with another table in a section."""
    old = table_of(text, name)
    before, after = (f"{begin(name)}\n\n{some}\n\n{end(name)}" for some in (old, table))
    return text.replace(before, after)
