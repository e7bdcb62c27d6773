"""mx.array to plain Python without the unions of its type stubs."""

from typing import Any

import mlx.core as mx


def plain(array: mx.array) -> Any:
    """Nested lists, or a number where the array has no axes."""
    return array.tolist()
