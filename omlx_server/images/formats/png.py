"""Walks through a PNG: https://www.w3.org/TR/png-3/

The image of an animated PNG is its default image, which programs without animations show.
"""

import struct
import zlib
from collections.abc import Iterator

from omlx_server.images.formats.header import (
    ImageFormat,
    ImageHeader,
    broken,
    check_size,
    cut_off,
)
from omlx_server.images.formats.orientation import orientation_of

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEPT = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_TRANSPARENCY = b"tRNS"
# Colour type -> samples of a pixel, bits that a sample may have.
_COLOURS = {
    0: (1, (1, 2, 4, 8, 16)),
    2: (3, (8, 16)),
    3: (1, (1, 2, 4, 8)),
    4: (2, (8, 16)),
    6: (4, (8, 16)),
}
_RGB, _PALETTE = 2, 3
# First column, first row, step of columns, step of rows: the seven passes of interlacing.
_PASSES = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
_MOST_CHUNKS = 65_536
_PIECE, _INFLATED = 65_536, 1024 * 1024
# Pillow holds four bytes a pixel, and as many again with alpha or over white.
_PILLOW_BYTES = 8


def read(data: bytes) -> ImageHeader:
    pieces, image, exif = [SIGNATURE], [], b""
    shape: tuple[int, ...] = ()
    for name, start, end in _chunks(data):
        if not shape:
            shape = _shape(name, data[start + 8 : end - 4])
        if name == b"IDAT":
            image.append(memoryview(data)[start + 8 : end - 4])
        elif name == b"eXIf":
            exif = data[start + 8 : end - 4]
        # Pillow keeps the high byte of 16-bit colours, so a transparent colour never matches.
        if name in _KEPT or (name == _TRANSPARENCY and shape[2:4] != (16, _RGB)):
            pieces.append(data[start:end])
    width, height, _, colour = shape[:4]
    if colour == _PALETTE and not any(part[4:8] == b"PLTE" for part in pieces):
        raise broken(ImageFormat.PNG, "it has no palette")
    if not _has(image, _raw_size(*shape)):
        raise cut_off(ImageFormat.PNG)
    return ImageHeader(
        ImageFormat.PNG,
        width,
        height,
        b"".join(pieces),
        _PILLOW_BYTES,
        orientation_of(exif),
    )


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    at = len(SIGNATURE)
    for _ in range(_MOST_CHUNKS):
        if at + 12 > len(data):
            raise cut_off(ImageFormat.PNG)
        end = at + 12 + int.from_bytes(data[at : at + 4])
        if end > len(data):
            raise cut_off(ImageFormat.PNG)
        name = data[at + 4 : at + 8]
        yield name, at, end
        if name == b"IEND":
            return
        at = end
    raise broken(ImageFormat.PNG, f"it has more than {_MOST_CHUNKS} chunks")


def _shape(name: bytes, header: bytes) -> tuple[int, ...]:
    """Return width, height, bits a sample, colour type, and 1 if interlaced."""
    if name != b"IHDR" or len(header) != 13:
        raise broken(ImageFormat.PNG, "it has no header")
    width, height, bits, colour, packing, filters, interlaced = struct.unpack(">IIBBBBB", header)
    check_size(ImageFormat.PNG, width, height)
    is_valid = colour in _COLOURS and bits in _COLOURS[colour][1]
    if not is_valid or packing or filters or interlaced > 1:
        raise broken(ImageFormat.PNG, "its header names a kind of pixels that no PNG has")
    return width, height, bits, colour, interlaced


def _raw_size(width: int, height: int, bits: int, colour: int, interlaced: int) -> int:
    """Return the bytes of the rows, filter bytes included."""
    passes = _PASSES if interlaced else ((0, 0, 1, 1),)
    total = 0
    for column, row, columns, rows in passes:
        across = max(0, -(-(width - column) // columns))
        down = max(0, -(-(height - row) // rows))
        if across:
            total += down * (1 + -(-across * bits * _COLOURS[colour][0] // 8))
    return total


def _has(image: list[memoryview], enough: int) -> bool:
    """Return whether the packed data holds `enough` bytes: Pillow leaves missing rows black. Holds
    at most `_INFLATED` bytes."""
    stream, total = zlib.decompressobj(), 0
    try:
        for chunk in image:
            for at in range(0, len(chunk), _PIECE):
                packed: bytes | memoryview = chunk[at : at + _PIECE]
                while packed and not stream.eof:
                    total += len(stream.decompress(packed, _INFLATED))
                    packed = stream.unconsumed_tail
                    if total >= enough:
                        return True
        return total + len(stream.flush()) >= enough
    except zlib.error:
        raise broken(ImageFormat.PNG, "its data can't be unpacked") from None
