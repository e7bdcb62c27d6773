"""Standard input. One that is closed (`<&-`) is no terminal, and empty."""

import sys


def is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def read(most: int = -1) -> bytes:
    """At most so many bytes, or all."""
    return sys.stdin.buffer.read(most) if sys.stdin is not None else b""
