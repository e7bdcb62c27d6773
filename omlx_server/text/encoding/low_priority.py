"""Lowers the priority of threads, so that the model's steps and the event loop go first."""

import os
import sys


def be_polite(niceness: int) -> None:
    """Add `niceness` to the nice value of the current thread, for good. Does nothing except on
    Linux, where alone it concerns one thread."""
    if sys.platform == "linux":
        os.nice(niceness)
