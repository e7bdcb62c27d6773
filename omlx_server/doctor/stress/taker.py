"""A program that takes memory as a growing app does, and gives half of it back when no more may be
taken: `taker MOST`, in bytes. It ends when its stdin does, and prints the most that it held.
"""

import os
import select
import sys

import psutil

from omlx_server.compute.hardware.heap import ram_bytes

_LARGEST_CHUNK = 128 << 20
_PATTERN_BYTES = 1 << 20
_PAUSE_SECONDS = 0.1
# What the machine keeps: the larger of these.
_LEAST_REST, _REST_SHARE = 2 << 30, 0.1
_CONTAINER_SHARE = 0.25  # of its limit, as what is free in it is not known


def next_chunks(held: int, chunk: int, available: int, most: int, rest: int) -> int:
    """Return how many chunks to hold next; `available` are the machine's free bytes."""
    fits = (held + 1) * chunk <= most and available - chunk >= rest
    return held + 1 if fits else held // 2


def main(most: int) -> None:
    total, ram = psutil.virtual_memory().total, ram_bytes()
    most = min(most, total if ram >= total else int(ram * _CONTAINER_SHARE))
    rest = max(_LEAST_REST, int(ram * _REST_SHARE))
    chunk = max(_PATTERN_BYTES, min(_LARGEST_CHUNK, most // 8))
    # Random bytes: macOS compresses others.
    pattern = os.urandom(_PATTERN_BYTES)
    chunks: list[bytes] = []
    peak, has_ended = 0, False
    while not has_ended:
        available = psutil.virtual_memory().available
        count = next_chunks(len(chunks), chunk, available, most, rest)
        if count > len(chunks):
            chunks.append(pattern * (chunk // _PATTERN_BYTES))
        del chunks[count:]
        peak = max(peak, len(chunks) * chunk)
        has_ended = bool(select.select([0], [], [], _PAUSE_SECONDS)[0])
    sys.stdout.write(f"{peak}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
