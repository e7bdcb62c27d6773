"""How much memory bad images and bombs need: run in a process of its own, since the peak of a
process never falls.

    python -m tests.pictures.peak
"""

import resource
import sys
from contextlib import suppress
from pathlib import Path

from omlx_server.errors import BadRequest
from omlx_server.pictures.decode import decode, inspect
from tests.pictures.bad_images import bad_images, bombs
from tests.pictures.images import FORMATS, png, small

_STATUS = Path("/proc/self/status")


def peak() -> int:
    """Bytes. Linux lets a process begin with the `ru_maxrss` of the one that started it, so that is
    for macOS only."""
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def rise(images: list[bytes]) -> int:
    """By how many bytes the peak rises while these are decoded."""
    before = peak()
    for data in images:
        with suppress(BadRequest):
            decode(inspect(data))
    return peak() - before


def main() -> None:
    """Print the rise for bad images and bombs, then that for a good image of nine megapixels, which
    shows that a rise is seen."""
    images = [data for _, data, _ in bad_images()] + [data for _, data in bombs()]
    rise([small(kind) for kind in FORMATS])
    large = png((3000, 3000), b"", colour=0, zeros=10)
    sys.stdout.write(f"{rise(images)} {rise([large])}\n")


if __name__ == "__main__":
    main()
