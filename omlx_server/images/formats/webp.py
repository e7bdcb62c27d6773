"""Walks through a WebP: RFC 9649. The image of an animation is its first frame."""

from collections.abc import Iterator

from omlx_server.images.formats.header import (
    ImageFormat,
    ImageHeader,
    broken,
    check_size,
    cut_off,
)
from omlx_server.images.formats.orientation import orientation_of

_EXTENDED, _ANIMATION, _ANIMATED_FRAME = b"VP8X", b"ANIM", b"ANMF"
_LOSSY, _LOSSLESS, _ALPHA, _EXIF = b"VP8 ", b"VP8L", b"ALPH", b"EXIF"
_IMAGES = (_LOSSY, _LOSSLESS)
_ALPHA_FLAG, _ANIMATION_FLAG = 0x10, 0x02
_MOST_CHUNKS = 65_536
_FRAME_HEADER = 16
# The codec has two canvases of four bytes a pixel and returns a third; Pillow holds as many for
# the image and for the image over white.
_PILLOW_BYTES = 20


def is_webp(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


def read(data: bytes) -> ImageHeader:
    size = int.from_bytes(data[4:8], "little") + 8
    if size > len(data):
        raise cut_off(ImageFormat.WEBP)
    canvas: tuple[int, int] | None = None
    pieces, exif, frame = [], b"", None
    for name, start, end in _chunks(data, 12, size):
        body = data[start + 8 : end]
        if name == _EXTENDED and canvas is None and len(body) >= 10:
            canvas = _three(body, 4) + 1, _three(body, 7) + 1
            check_size(ImageFormat.WEBP, *canvas)
            flags = body[0] & (_ALPHA_FLAG | _ANIMATION_FLAG)
            pieces.append(data[start : start + 8] + bytes([flags]) + data[start + 9 : end])
        elif name in _IMAGES or name == _ANIMATED_FRAME:
            if frame is None:
                frame = _frame_size(name, body)
                pieces.append(data[start:end])
        elif name in (_ANIMATION, _ALPHA) and frame is None:
            pieces.append(data[start:end])
        elif name == _EXIF:
            exif = body
    if frame is None:
        raise broken(ImageFormat.WEBP, "it has no image")
    width, height = canvas or frame
    if frame[0] > width or frame[1] > height:
        raise broken(ImageFormat.WEBP, "its image is larger than its header says")
    whole = b"WEBP" + b"".join(pieces)
    packed = b"RIFF" + len(whole).to_bytes(4, "little") + whole
    return ImageHeader(ImageFormat.WEBP, width, height, packed, _PILLOW_BYTES, orientation_of(exif))


def _chunks(data: bytes, at: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    for _ in range(_MOST_CHUNKS):
        if at + 8 > stop:
            return
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if at + 8 + length > stop:
            raise cut_off(ImageFormat.WEBP)
        end = at + 8 + length + length % 2
        yield data[at : at + 4], at, end
        at = end
    raise broken(ImageFormat.WEBP, f"it has more than {_MOST_CHUNKS} chunks")


def _frame_size(name: bytes, body: bytes) -> tuple[int, int]:
    if name == _ANIMATED_FRAME:
        for inner, start, end in _chunks(body, _FRAME_HEADER, len(body)):
            if inner in _IMAGES:
                return _frame_size(inner, body[start + 8 : end])
        raise broken(ImageFormat.WEBP, "its first frame is empty")
    if name == _LOSSY:
        if len(body) < 10 or body[3:6] != b"\x9d\x01\x2a":
            raise broken(ImageFormat.WEBP, "its image has no header")
        size = (
            int.from_bytes(body[6:8], "little") & 0x3FFF,
            int.from_bytes(body[8:10], "little") & 0x3FFF,
        )
    else:
        if len(body) < 5 or body[0] != 0x2F:
            raise broken(ImageFormat.WEBP, "its image has no header")
        bits = int.from_bytes(body[1:5], "little")
        size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    check_size(ImageFormat.WEBP, *size)
    return size


def _three(body: bytes, at: int) -> int:
    return int.from_bytes(body[at : at + 3], "little")
