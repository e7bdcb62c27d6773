"""Lowers the priority of threads, so that the model's steps and the event loop go first."""

import os
import sys


def be_polite(niceness: int) -> None:
    """Add `niceness` to the current thread's nice value, for good. Only on Linux, where it
    concerns one thread."""
    if sys.platform == "linux":
        os.nice(niceness)
