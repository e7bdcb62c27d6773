"""Threads that leave the processors to others: to the steps of the model, and to the event loop."""

import os
import sys


def be_polite(niceness: int) -> None:
    """Make the current thread nice. Only on Linux a thread is so by itself: elsewhere the whole
    process would be, for good."""
    if sys.platform == "linux":
        os.nice(niceness)
