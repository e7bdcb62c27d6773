"""A plugin of pytest that notes which test files are collected, and imports none of them.

`python -m pytest --collect-only -p tests.recording` prints a line for each. Whatever keeps a file
from being collected does so here as well: settings, options, and what conftest.py files ignore.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

MARK = "collected: "


class Noted(pytest.File):
    """A test file that is not looked into."""

    def collect(self) -> Iterator[pytest.Item]:
        print(f"{MARK}{self.path}")  # noqa: T201
        return iter(())


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.File:
    return Noted.from_parent(parent, path=module_path)
