"""The bytes of an event stream, as events with the times at which they were complete. Pure.

They are parsed when the answer is over: while tokens come, a client only notes times.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

Piece = tuple[float, bytes]


def events(pieces: Iterable[Piece]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The JSON of each `data:` line, but for [DONE]. Raises ValueError for what is no JSON."""
    rest = b""
    for at, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield at, json.loads(data)
