"""Runs `peak.py` in a process of its own."""

import subprocess
import sys
from pathlib import Path


def measured(*arguments: str, data: bytes = b"") -> tuple[int, int]:
    """The two numbers that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.images.peak", *arguments],
        input=data,
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    first, second = map(int, done.stdout.split())
    return first, second
