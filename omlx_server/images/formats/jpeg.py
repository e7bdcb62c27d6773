"""Walks through a JPEG: ITU-T T.81."""

import re
from dataclasses import dataclass, field

from omlx_server.errors import BadRequest
from omlx_server.images.formats.header import (
    ImageBounds,
    ImageFormat,
    ImageHeader,
    broken,
    check_size,
    cut_off,
)
from omlx_server.images.formats.orientation import orientation_of

SIGNATURE = b"\xff\xd8\xff"
# A marker, and not a byte of the data that happens to be 255, nor the restarts between such data.
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_START, _END, _SCAN, _EXIF = 0xD8, 0xD9, 0xDA, 0xE1
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
_TABLES = (0xC4, 0xDB, 0xDD)  # Huffman, quantisation, restart interval
# These say how colours are stored. All other application segments are dropped.
_ABOUT_COLOURS = {0xE0: b"JFIF\0", 0xEE: b"Adobe"}
_MOST_SEGMENTS, _MOST_SCANS = 10_000, 100
# Pillow holds four bytes a pixel, and four more while it converts inks; the codec holds two for
# each sample of an image that comes in several scans.
_PILLOW_BYTES, _COEFFICIENT_BYTES = 8, 2


@dataclass(slots=True)
class _Found:
    kept: list[bytes] = field(default_factory=lambda: [SIGNATURE[:2]])
    frame: bytes = b""
    marker: int = 0
    exif: bytes = b""
    scans: int = 0
    scanned_bytes: int = 0


def read(data: bytes, bounds: ImageBounds) -> ImageHeader:
    """Raises BadRequest."""
    found = _walk(data, bounds)
    if not found.scans:
        raise broken(ImageFormat.JPEG, "it has no data")
    width, height, samples = _shape(found.frame)
    if found.scans > 1 and width * height * found.scans > bounds.most_scanned:
        raise BadRequest(
            f"the JPEG takes too long to decode: it goes {found.scans} times through "
            f"{width} x {height} pixels"
        )
    # Each unit takes at least a bit.
    if found.scanned_bytes * 8 < _units(found.frame):
        raise cut_off(ImageFormat.JPEG)
    scanned = samples * _COEFFICIENT_BYTES if _is_buffered(found) else 0
    return ImageHeader(
        ImageFormat.JPEG,
        width,
        height,
        b"".join(found.kept),
        _PILLOW_BYTES,
        orientation_of(found.exif),
        codec_bytes=scanned,
    )


def _walk(data: bytes, bounds: ImageBounds) -> _Found:
    found, at = _Found(), 2
    for _ in range(_MOST_SEGMENTS):
        match = _MARKER.search(data, at)
        if match is None:
            raise cut_off(ImageFormat.JPEG)
        start, marker = match.start(), data[match.end() - 1]
        if marker == _END:
            found.kept.append(b"\xff\xd9")
            return found
        if marker == _START:
            raise broken(ImageFormat.JPEG, "another one begins inside it")
        end = start + 2 + int.from_bytes(data[start + 2 : start + 4])
        if end > len(data) or start + 4 > len(data):
            raise cut_off(ImageFormat.JPEG)
        if marker == _SCAN:
            end = _take_scan(found, data, start, end)
        else:
            _take(found, marker, data[start:end], bounds)
        at = end
    raise broken(ImageFormat.JPEG, f"it has more than {_MOST_SEGMENTS} segments")


def _take_scan(found: _Found, data: bytes, start: int, end: int) -> int:
    """Keep the scan that begins at `start`, and whose data begins at `end`. The end of its data."""
    found.scans += 1
    if not found.frame:
        raise broken(ImageFormat.JPEG, "its data begins before its size is known")
    if found.scans > _MOST_SCANS:
        raise BadRequest(f"the JPEG has more than {_MOST_SCANS} scans")
    following = _MARKER.search(data, end)
    if following is None:
        raise cut_off(ImageFormat.JPEG)
    found.scanned_bytes += following.start() - end
    found.kept.append(data[start : following.start()])
    return following.start()


def _take(found: _Found, marker: int, segment: bytes, bounds: ImageBounds) -> None:
    """Keep a segment that the pixels need."""
    if marker in _FRAMES:
        if found.frame:
            raise broken(ImageFormat.JPEG, "it has two sizes")
        if marker not in _SEQUENTIAL and marker != _PROGRESSIVE:
            raise BadRequest("the JPEG is of a rare kind, lossless or arithmetic: send another")
        found.frame, found.marker = segment, marker
        width, height, _ = _shape(segment)
        check_size(ImageFormat.JPEG, width, height, bounds)
    elif marker == _EXIF:
        if not found.exif and segment[4:10] == b"Exif\0\0":
            found.exif = segment[4:]
        return
    elif marker not in _TABLES:
        about = _ABOUT_COLOURS.get(marker)
        if about is None or not segment[4:].startswith(about):
            return
    found.kept.append(segment)


def _shape(frame: bytes) -> tuple[int, int, int]:
    """Width, height and samples of a pixel."""
    samples = frame[9] if len(frame) > 9 else 0
    if len(frame) != 10 + 3 * samples or samples not in (1, 3, 4):
        raise broken(ImageFormat.JPEG, "its header names a kind of pixels that is not known")
    if frame[4] != 8:
        raise BadRequest(f"the JPEG has {frame[4]} bits a sample: send one with 8")
    return int.from_bytes(frame[7:9]), int.from_bytes(frame[5:7]), samples


def _units(frame: bytes) -> int:
    """How many units of pixels are coded at least. A unit is a square of eight for each sample, or
    up to four such in a row and in a column where another sample has fewer."""
    width, height, samples = _shape(frame)
    factors = [frame[11 + 3 * index] for index in range(samples)]
    across = max(1, *(factor >> 4 for factor in factors))
    down = max(1, *(factor & 15 for factor in factors))
    return -(-width // (8 * across)) * -(-height // (8 * down))


def _is_buffered(found: _Found) -> bool:
    """Whether the codec holds all coefficients at once."""
    return found.scans > 1 or found.marker == _PROGRESSIVE
