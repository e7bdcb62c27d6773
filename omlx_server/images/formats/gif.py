"""Walks through a GIF up to the end of its first frame, the image."""

import struct

from omlx_server.images.formats.header import (
    ImageFormat,
    ImageHeader,
    broken,
    check_size,
    cut_off,
)

SIGNATURES = (b"GIF87a", b"GIF89a")
_EXTENSION, _FRAME, _TRAILER = 0x21, 0x2C, 0x3B
_TRANSPARENCY = 0xF9
_MOST_BLOCKS = 1_000_000
# A code has at least two bits and stands for up to 4,096 pixels.
_MOST_PIXELS_OF_A_BYTE = 4 * 4096
_PILLOW_BYTES = 8


def read(data: bytes) -> ImageHeader:
    if len(data) < 13:
        raise cut_off(ImageFormat.GIF)
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + _palette_size(flags)
    pieces = [data[:at]]
    while True:
        start = at
        block = data[at : at + 1]
        if block == bytes([_FRAME]):
            break
        if block != bytes([_EXTENSION]):
            missing = broken(ImageFormat.GIF, "it has no frame")
            raise missing if block else cut_off(ImageFormat.GIF)
        at = _blocks_end(data, at + 2)
        if data[start + 1 : start + 2] == bytes([_TRANSPARENCY]):
            pieces[1:] = [data[start:at]]  # only the last one counts
    if at + 11 > len(data):
        raise cut_off(ImageFormat.GIF)
    left, top, across, down, flags = struct.unpack_from("<HHHHB", data, at + 1)
    check_size(ImageFormat.GIF, across, down)
    width, height = max(width, left + across), max(height, top + down)
    check_size(ImageFormat.GIF, width, height)
    codes = at + 10 + _palette_size(flags) + 1
    end = _blocks_end(data, codes)
    if across * down > (end - codes) * _MOST_PIXELS_OF_A_BYTE:
        raise cut_off(ImageFormat.GIF)
    pieces += [data[start:end], bytes([_TRAILER])]
    return ImageHeader(ImageFormat.GIF, width, height, b"".join(pieces), _PILLOW_BYTES)


def _palette_size(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _blocks_end(data: bytes, at: int) -> int:
    """Return the end of a row of blocks, each after its length; an empty one ends the row."""
    for _ in range(_MOST_BLOCKS):
        if at >= len(data):
            raise cut_off(ImageFormat.GIF)
        length = data[at]
        at += 1 + length
        if not length:
            return at
    raise broken(ImageFormat.GIF, f"it has more than {_MOST_BLOCKS} blocks")
