"""Walks through a GIF up to the end of its first frame, the image."""

import struct

from omlx_server.images.formats.header import ImageFormat, ImageHeader, check_size

SIGNATURES = (b"GIF87a", b"GIF89a")
_EXTENSION, _FRAME, _TRAILER = 0x21, 0x2C, 0x3B
_TRANSPARENCY = 0xF9
_MOST_BLOCKS = 1_000_000
# A code has at least two bits and stands for up to 4,096 pixels.
_MOST_PIXELS_OF_A_BYTE = 4 * 4096
_PILLOW_BYTES = 8


def read(data: bytes) -> ImageHeader:
    if len(data) < 13:
        raise ImageFormat.GIF.cut_off()
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    palette_end = 13 + _palette_bytes(flags)
    transparency, frame = _skip_extensions(data, palette_end)
    if frame + 11 > len(data):
        raise ImageFormat.GIF.cut_off()
    left, top, frame_width, frame_height, flags = struct.unpack_from("<HHHHB", data, frame + 1)
    check_size(ImageFormat.GIF, frame_width, frame_height)
    width, height = max(width, left + frame_width), max(height, top + frame_height)
    check_size(ImageFormat.GIF, width, height)
    codes = frame + 10 + _palette_bytes(flags) + 1
    end = _end_of_blocks(data, codes)
    if frame_width * frame_height > (end - codes) * _MOST_PIXELS_OF_A_BYTE:
        raise ImageFormat.GIF.cut_off()
    kept = data[:palette_end] + transparency + data[frame:end] + bytes([_TRAILER])
    return ImageHeader(ImageFormat.GIF, width, height, kept, _PILLOW_BYTES)


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_extensions(data: bytes, start: int) -> tuple[bytes, int]:
    """Return the last extension about transparency, which alone counts, and where the first frame
    begins."""
    transparency = b""
    while data[start : start + 1] == bytes([_EXTENSION]):
        end = _end_of_blocks(data, start + 2)
        if data[start + 1] == _TRANSPARENCY:
            transparency = data[start:end]
        start = end
    if start >= len(data):
        raise ImageFormat.GIF.cut_off()
    if data[start] != _FRAME:
        raise ImageFormat.GIF.broken("it has no frame")
    return transparency, start


def _end_of_blocks(data: bytes, at: int) -> int:
    """Return the end of a row of blocks, each after its length; an empty one ends the row."""
    for _ in range(_MOST_BLOCKS):
        if at >= len(data):
            raise ImageFormat.GIF.cut_off()
        length = data[at]
        at += 1 + length
        if not length:
            return at
    raise ImageFormat.GIF.broken(f"it has more than {_MOST_BLOCKS} blocks")
