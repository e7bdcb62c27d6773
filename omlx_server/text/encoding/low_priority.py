"""Lowers the priority of threads, so that the model's steps and the event loop go first."""

import os
import sys


def be_polite(niceness: int) -> None:
    """Add `niceness` to the nice value of the current thread, for good. Only on Linux: elsewhere
    the whole process would become nice, so nothing happens."""
    if sys.platform == "linux":
        os.nice(niceness)
