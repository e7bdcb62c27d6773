"""How much memory images need: run in a process of its own, since the peak of a process never
falls.

    python -m tests.images.peak          bad images and bombs, then a good image
    python -m tests.images.peak decode   the image at stdin, and what was estimated
    python -m tests.images.peak prepare  the same, for preparing it
"""

import resource
import sys
from contextlib import suppress
from pathlib import Path

from omlx_server.errors import BadRequest
from omlx_server.images.decode import decode, inspect
from omlx_server.images.prepare.families import make_preparer
from tests.images.bad_images import bad_images, bombs
from tests.images.files import FORMATS, png, small

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


def bad_and_good() -> tuple[int, int]:
    """The rise for bad images and bombs, then that for a good image of nine megapixels, which shows
    that a rise is seen."""
    images = [data for _, data, _ in bad_images()] + [data for _, data in bombs()]
    large = png((3000, 3000), b"", colour=0, zeros=10)
    return rise(images), rise([large])


def prepare(data: bytes) -> tuple[int, int]:
    bitmap = decode(inspect(data))
    preparer = make_preparer({"max_pixels": 4_000_000}, {"model_type": "qwen2_vl"})
    plan = preparer.plan(bitmap.height, bitmap.width)
    before = peak()
    preparer.prepare(bitmap)
    return peak() - before, plan.working_bytes + plan.pixel_bytes


def main() -> None:
    rise([small(kind) for kind in FORMATS])
    match sys.argv[1:]:
        case ["decode"]:
            data = sys.stdin.buffer.read()
            found = rise([data]), inspect(data).peak_bytes
        case ["prepare"]:
            found = prepare(sys.stdin.buffer.read())
        case _:
            found = bad_and_good()
    sys.stdout.write(f"{found[0]} {found[1]}\n")


if __name__ == "__main__":
    main()
