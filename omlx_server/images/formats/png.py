"""Walks through a PNG: https://www.w3.org/TR/png-3/

The image of an animated PNG is its default image, which programs without animations show.
"""

import struct
import zlib
from collections.abc import Iterator

from omlx_server.images.formats.header import ImageFormat, ImageHeader, check_size
from omlx_server.images.formats.orientation import orientation_of

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TRANSPARENCY = b"tRNS"
_KEPT = (b"IHDR", b"PLTE", b"IDAT", b"IEND", _TRANSPARENCY)
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
_PIECE_BYTES, _MOST_INFLATED_BYTES = 65_536, 1024 * 1024
# Pillow holds four bytes a pixel, and as many again with alpha or over white.
_PILLOW_BYTES = 8


def read(data: bytes) -> ImageHeader:
    chunks = _chunks(data)
    name, start, end = next(chunks)
    width, height, bits, colour_type, interlaced = _read_first(name, data[start + 8 : end - 4])
    kept, image, exif, has_palette = [SIGNATURE, data[start:end]], [], b"", False
    for name, start, end in chunks:
        content = slice(start + 8, end - 4)
        if name == b"IDAT":
            image.append(memoryview(data)[content])
        elif name == b"eXIf":
            exif = data[content]
        has_palette = has_palette or name == b"PLTE"
        # Pillow keeps the high byte of 16-bit colours, so a transparent colour never matches.
        is_useless = name == _TRANSPARENCY and (bits, colour_type) == (16, _RGB)
        if name in _KEPT and not is_useless:
            kept.append(data[start:end])
    if colour_type == _PALETTE and not has_palette:
        raise ImageFormat.PNG.broken("it has no palette")
    pixel_bits = bits * _COLOURS[colour_type][0]
    if not _inflates_to(image, _raw_bytes(width, height, pixel_bits, interlaced)):
        raise ImageFormat.PNG.cut_off()
    file = b"".join(kept)
    return ImageHeader(ImageFormat.PNG, width, height, file, _PILLOW_BYTES, orientation_of(exif))


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and end of each chunk."""
    at = len(SIGNATURE)
    for _ in range(_MOST_CHUNKS):
        if at + 12 > len(data):
            raise ImageFormat.PNG.cut_off()
        end = at + 12 + int.from_bytes(data[at : at + 4])
        if end > len(data):
            raise ImageFormat.PNG.cut_off()
        name = data[at + 4 : at + 8]
        yield name, at, end
        if name == b"IEND":
            return
        at = end
    raise ImageFormat.PNG.broken(f"it has more than {_MOST_CHUNKS} chunks")


def _read_first(name: bytes, header: bytes) -> tuple[int, int, int, int, bool]:
    """Return width, height, bits of a sample, colour type and whether rows are interlaced."""
    if name != b"IHDR" or len(header) != 13:
        raise ImageFormat.PNG.broken("it has no header")
    width, height, bits, colour, packing, filters, interlaced = struct.unpack(">IIBBBBB", header)
    check_size(ImageFormat.PNG, width, height)
    is_valid = colour in _COLOURS and bits in _COLOURS[colour][1]
    if not is_valid or packing or filters or interlaced > 1:
        raise ImageFormat.PNG.broken("its header names a kind of pixels that no PNG has")
    return width, height, bits, colour, interlaced == 1


def _raw_bytes(width: int, height: int, pixel_bits: int, interlaced: bool) -> int:
    """Return the bytes of all rows unpacked, each with a byte for its filter."""
    total = 0
    for column, row, columns, rows in _PASSES if interlaced else ((0, 0, 1, 1),):
        pass_width = max(0, -(-(width - column) // columns))
        pass_height = max(0, -(-(height - row) // rows))
        if pass_width:
            total += pass_height * (1 + -(-pass_width * pixel_bits // 8))
    return total


def _inflates_to(image: list[memoryview], least_bytes: int) -> bool:
    """Return whether the packed data has enough bytes, as Pillow leaves missing rows black. Holds
    at most `_MOST_INFLATED_BYTES`."""
    stream, total = zlib.decompressobj(), 0
    try:
        for chunk in image:
            for start in range(0, len(chunk), _PIECE_BYTES):
                packed: bytes | memoryview = chunk[start : start + _PIECE_BYTES]
                while packed and not stream.eof:
                    total += len(stream.decompress(packed, _MOST_INFLATED_BYTES))
                    packed = stream.unconsumed_tail
                    if total >= least_bytes:
                        return True
        return total + len(stream.flush()) >= least_bytes
    except zlib.error:
        raise ImageFormat.PNG.broken("its data can't be unpacked") from None
