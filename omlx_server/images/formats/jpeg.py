"""Walks through a JPEG: ITU-T T.81."""

import re
from dataclasses import dataclass, field

from omlx_server.errors import BadRequest
from omlx_server.images.formats.header import ImageFormat, ImageHeader, check_size
from omlx_server.images.formats.orientation import orientation_of

SIGNATURE = b"\xff\xd8\xff"
# A marker, but neither a 255 in coded data nor a restart between such data.
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_START, _END, _SCAN, _EXIF = 0xD8, 0xD9, 0xDA, 0xE1
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
_TABLES = (0xC4, 0xDB, 0xDD)  # Huffman, quantisation, restart interval
# Application segments that say how colours are stored, and their first bytes; others are dropped.
_COLOUR_SEGMENTS = {0xE0: b"JFIF\0", 0xEE: b"Adobe"}
_MOST_SEGMENTS, _MOST_SCANS = 10_000, 100
# Pixels of all scans of a progressive JPEG; ordinary ones have about ten scans.
MOST_SCANNED = 1_000_000_000
# Pillow holds four bytes a pixel, and four more while it converts inks; the codec holds two for
# each sample of an image that comes in several scans.
_PILLOW_BYTES, _COEFFICIENT_BYTES = 8, 2


@dataclass(slots=True)
class _JpegParts:
    """The parts of a JPEG: pieces to keep, the segment with the size and its marker, and the scans,
    which are the packed pixels."""

    kept: list[bytes] = field(default_factory=lambda: [SIGNATURE[:2]])
    frame: bytes = b""
    frame_marker: int = 0
    exif: bytes = b""
    scans: int = 0
    scanned_bytes: int = 0


def read(data: bytes) -> ImageHeader:
    parts = _find_parts(data)
    if not parts.scans:
        raise ImageFormat.JPEG.broken("it has no data")
    width, height, samples = _frame_shape(parts.frame)
    if parts.scans > 1 and width * height * parts.scans > MOST_SCANNED:
        raise BadRequest(
            f"the JPEG takes too long to decode: it goes {parts.scans} times through "
            f"{width} x {height} pixels"
        )
    # Each unit takes at least a bit.
    if parts.scanned_bytes * 8 < _least_units(parts.frame):
        raise ImageFormat.JPEG.cut_off()
    holds_all_coefficients = parts.scans > 1 or parts.frame_marker == _PROGRESSIVE
    return ImageHeader(
        ImageFormat.JPEG,
        width,
        height,
        b"".join(parts.kept),
        _PILLOW_BYTES,
        orientation_of(parts.exif),
        codec_bytes=samples * _COEFFICIENT_BYTES if holds_all_coefficients else 0,
    )


def _find_parts(data: bytes) -> _JpegParts:
    parts, at = _JpegParts(), 2
    for _ in range(_MOST_SEGMENTS):
        match = _MARKER.search(data, at)
        if match is None:
            raise ImageFormat.JPEG.cut_off()
        start, marker = match.start(), data[match.end() - 1]
        if marker == _END:
            parts.kept.append(b"\xff\xd9")
            return parts
        if marker == _START:
            raise ImageFormat.JPEG.broken("another one begins inside it")
        end = start + 2 + int.from_bytes(data[start + 2 : start + 4])
        if end > len(data) or start + 4 > len(data):
            raise ImageFormat.JPEG.cut_off()
        if marker == _SCAN:
            at = _add_scan(parts, data, start, end)
        else:
            _add_segment(parts, marker, data[start:end])
            at = end
    raise ImageFormat.JPEG.broken(f"it has more than {_MOST_SEGMENTS} segments")


def _add_scan(parts: _JpegParts, data: bytes, start: int, packed: int) -> int:
    """Keep the scan at `start`, whose pixels begin at `packed`. Return their end."""
    parts.scans += 1
    if not parts.frame:
        raise ImageFormat.JPEG.broken("its data begins before its size is known")
    if parts.scans > _MOST_SCANS:
        raise BadRequest(f"the JPEG has more than {_MOST_SCANS} scans")
    following = _MARKER.search(data, packed)
    if following is None:
        raise ImageFormat.JPEG.cut_off()
    end = following.start()
    parts.scanned_bytes += end - packed
    parts.kept.append(data[start:end])
    return end


def _add_segment(parts: _JpegParts, marker: int, segment: bytes) -> None:
    """Read a segment, and keep it if the pixels need it."""
    if marker in _FRAMES:
        if parts.frame:
            raise ImageFormat.JPEG.broken("it has two sizes")
        if marker not in _SEQUENTIAL and marker != _PROGRESSIVE:
            raise BadRequest("the JPEG is of a rare kind, lossless or arithmetic: send another")
        parts.frame, parts.frame_marker = segment, marker
        width, height, _ = _frame_shape(segment)
        check_size(ImageFormat.JPEG, width, height)
    elif marker == _EXIF:
        if not parts.exif and segment[4:10] == b"Exif\0\0":
            parts.exif = segment[4:]
        return
    elif marker not in _TABLES:
        begin = _COLOUR_SEGMENTS.get(marker)
        if begin is None or not segment[4:].startswith(begin):
            return
    parts.kept.append(segment)


def _frame_shape(frame: bytes) -> tuple[int, int, int]:
    """Return width, height and samples a pixel."""
    samples = frame[9] if len(frame) > 9 else 0
    if len(frame) != 10 + 3 * samples or samples not in (1, 3, 4):
        raise ImageFormat.JPEG.broken("its header names a kind of pixels that is not known")
    if frame[4] != 8:
        raise BadRequest(f"the JPEG has {frame[4]} bits a sample: send one with 8")
    return int.from_bytes(frame[7:9]), int.from_bytes(frame[5:7]), samples


def _least_units(frame: bytes) -> int:
    """Return the least number of coded units. A unit has 8 x 8 pixels, times the largest sampling
    factors (1 to 4) across and down."""
    width, height, samples = _frame_shape(frame)
    factors = [frame[11 + 3 * index] for index in range(samples)]
    across = max(1, *(factor >> 4 for factor in factors))
    down = max(1, *(factor & 15 for factor in factors))
    return -(-width // (8 * across)) * -(-height // (8 * down))
