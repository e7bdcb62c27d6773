"""Walks through a WebP: RFC 9649. The image of an animation is its first frame."""

import struct
from collections.abc import Iterator

from omlx_server.images.formats.header import ImageFormat, ImageHeader, check_size
from omlx_server.images.formats.orientation import orientation_of

_EXTENDED, _ANIMATION, _ANIMATED_FRAME = b"VP8X", b"ANIM", b"ANMF"
_LOSSY, _LOSSLESS, _ALPHA, _EXIF = b"VP8 ", b"VP8L", b"ALPH", b"EXIF"
_IMAGES = (_LOSSY, _LOSSLESS)
_ALPHA_FLAG, _ANIMATION_FLAG = 0x10, 0x02
_MOST_CHUNKS = 65_536
_FRAME_HEADER_BYTES = 16
# The codec has two canvases of four bytes a pixel and returns a third; Pillow holds as many for
# the image and for the image over white.
_PILLOW_BYTES = 20


def is_webp(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


def read(data: bytes) -> ImageHeader:
    size = int.from_bytes(data[4:8], "little") + 8
    if size > len(data):
        raise ImageFormat.WEBP.cut_off()
    canvas_size: tuple[int, int] | None = None
    frame_size: tuple[int, int] | None = None
    kept, exif = [], b""
    for name, start, end in _chunks(data, 12, size):
        content = data[start + 8 : end]
        if name == _EXTENDED and canvas_size is None and len(content) >= 10:
            canvas_size = _uint24(content, 4) + 1, _uint24(content, 7) + 1
            check_size(ImageFormat.WEBP, *canvas_size)
            flags = content[0] & (_ALPHA_FLAG | _ANIMATION_FLAG)
            kept.append(data[start : start + 8] + bytes([flags]) + data[start + 9 : end])
        elif name in _IMAGES or name == _ANIMATED_FRAME:
            if frame_size is None:
                frame_size = _frame_size(name, content)
                kept.append(data[start:end])
        elif name in (_ANIMATION, _ALPHA) and frame_size is None:
            kept.append(data[start:end])
        elif name == _EXIF:
            exif = content
    if frame_size is None:
        raise ImageFormat.WEBP.broken("it has no image")
    width, height = canvas_size or frame_size
    if frame_size[0] > width or frame_size[1] > height:
        raise ImageFormat.WEBP.broken("its image is larger than its header says")
    body = b"WEBP" + b"".join(kept)
    file = b"RIFF" + len(body).to_bytes(4, "little") + body
    return ImageHeader(ImageFormat.WEBP, width, height, file, _PILLOW_BYTES, orientation_of(exif))


def _chunks(data: bytes, at: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and end of each chunk."""
    for _ in range(_MOST_CHUNKS):
        if at + 8 > stop:
            return
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if at + 8 + length > stop:
            raise ImageFormat.WEBP.cut_off()
        end = at + 8 + length + length % 2
        yield data[at : at + 4], at, end
        at = end
    raise ImageFormat.WEBP.broken(f"it has more than {_MOST_CHUNKS} chunks")


def _frame_size(name: bytes, content: bytes) -> tuple[int, int]:
    """Return width and height in a chunk with an image or an animation's frame."""
    if name == _ANIMATED_FRAME:
        for image, start, end in _chunks(content, _FRAME_HEADER_BYTES, len(content)):
            if image in _IMAGES:
                return _frame_size(image, content[start + 8 : end])
        raise ImageFormat.WEBP.broken("its first frame is empty")
    if name == _LOSSY:
        if len(content) < 10 or content[3:6] != b"\x9d\x01\x2a":
            raise ImageFormat.WEBP.broken("its image has no header")
        width, height = struct.unpack_from("<HH", content, 6)
        size = width & 0x3FFF, height & 0x3FFF
    else:
        if len(content) < 5 or content[0] != 0x2F:
            raise ImageFormat.WEBP.broken("its image has no header")
        (bits,) = struct.unpack_from("<I", content, 1)
        size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    check_size(ImageFormat.WEBP, *size)
    return size


def _uint24(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 3], "little")
