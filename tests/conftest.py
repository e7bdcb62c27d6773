"""What all tests share: an admin token, signals, and a heap that is not looked through again."""

import gc
import os
import signal

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


def pytest_collection_finish() -> None:
    """What all tests share is no garbage, and is not looked through again and again: a full
    collection takes half a second with it, and tests of memory ask for dozens."""
    gc.collect()
    gc.freeze()
