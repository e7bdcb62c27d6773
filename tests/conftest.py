"""What all tests share: an admin token, signals, a heap that is not looked through again, and
which cases run."""

import gc
import os
import signal

import pytest

from tests.heap import Heap

# Nothing is garbage while modules are imported and tests are collected.
gc.disable()

# Servers in tests make no file of a token in the home of whoever runs them.
os.environ.setdefault("OMLX_ADMIN_TOKEN", "admin-token-of-the-tests")

# Tests that give a program a home of its own look for its files there.
for _name in [name for name in os.environ if name.startswith("XDG_")]:
    del os.environ[_name]

# Engines look through their books whenever they are at rest.
os.environ["OMLX_CHECKS"] = "1"

# A shell that runs the tests in the background has SIGINT ignored, and so would every program that
# they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


HEAP = Heap()


def pytest_collection_finish() -> None:
    HEAP.stand_before()
    HEAP.keep()
    gc.enable()


def pytest_runtest_logstart(nodeid: str) -> None:
    HEAP.begin(nodeid.partition("::")[0])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--wide", action="store_true", help="run all cases of the sweeps")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--wide"):
        return
    wide = [item for item in items if item.get_closest_marker("wide")]
    if wide:
        config.hook.pytest_deselected(items=wide)
        items[:] = [item for item in items if not item.get_closest_marker("wide")]
