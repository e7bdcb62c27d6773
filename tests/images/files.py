"""Makes files of images, good ones with Pillow and odd ones by hand."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

PNG = b"\x89PNG\r\n\x1a\n"
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> npt.NDArray[np.uint8]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (height, width, channels), dtype=np.uint8)


def encoded(image: Image.Image | npt.NDArray[Any], kind: str, **options: Any) -> bytes:
    made = image if isinstance(image, Image.Image) else Image.fromarray(image)
    file = io.BytesIO()
    made.save(file, kind, **options)
    return file.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def packed(raw: bytes, zeros: int = 0) -> bytes:
    """Packed by zlib, with so many million zeros after it, of which few are held at once."""
    packer = zlib.compressobj()
    million = bytes(1_000_000)
    parts = [packer.compress(raw), *(packer.compress(million) for _ in range(zeros))]
    return b"".join(parts) + packer.flush()


def endless(raw: bytes, times: int) -> bytes:
    """As `packed`, with ten million zeros so many times. They are packed once, and never end."""
    packer = zlib.compressobj()
    start = packer.compress(raw) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + (packer.compress(bytes(10_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)) * times


def png(
    size: tuple[int, int],
    raw: bytes,
    *,
    bits: int = 8,
    colour: int = 2,
    interlaced: int = 0,
    before: bytes = b"",
    zeros: int = 0,
) -> bytes:
    """A PNG of (width, height) with these rows; `before` are chunks before the data, and `zeros`
    are millions of them after the rows."""
    header = struct.pack(">IIBBBBB", *size, bits, colour, 0, 0, interlaced)
    data = chunk(b"IDAT", packed(raw, zeros))
    return PNG + chunk(b"IHDR", header) + before + data + chunk(b"IEND", b"")


def rows(pixels: npt.NDArray[Any]) -> bytes:
    """The rows of a PNG, unfiltered."""
    return b"".join(b"\0" + row.tobytes() for row in pixels)


def small(kind: str) -> bytes:
    """A good file of that format."""
    lossless = {"lossless": True} if kind == "WEBP" else {}
    return encoded(noise(24, 16), kind, **lossless)


def with_size(kind: str, width: int, height: int) -> bytes:
    """A small file that says to be of that size."""
    data = bytearray(small(kind))
    match kind:
        case "PNG":
            return png((width, height), rows(noise(2, 2)))
        case "JPEG":
            at = data.index(b"\xff\xc0") + 5
            data[at : at + 4] = struct.pack(">HH", height, width)
        case "GIF":
            data[6:10] = struct.pack("<HH", width, height)
            at = data.index(b"\x2c\0\0\0\0") + 5
            data[at : at + 4] = struct.pack("<HH", width, height)
        case _:
            packed = (width - 1 & 0x3FFF) | (height - 1 & 0x3FFF) << 14
            data[21:25] = struct.pack("<I", packed)
    return bytes(data)


def animated(kind: str, frames: int, size: tuple[int, int] = (16, 24)) -> bytes:
    """An animation whose first frame is red, and every other one of another colour."""
    later = [Image.new("RGB", size, (0, index % 250 + 5, 99)) for index in range(1, frames)]
    options = {"lossless": True} if kind == "WEBP" else {}
    red = Image.new("RGB", size, (255, 0, 0))
    return encoded(red, kind, save_all=True, append_images=later, **options)


def progressive(scans: int, size: tuple[int, int] = (64, 64)) -> bytes:
    """A JPEG whose last scan comes again and again."""
    data = encoded(Image.new("RGB", size, (9, 99, 9)), "JPEG", progressive=True)
    start = data.rindex(b"\xff\xda")
    more = scans - data.count(b"\xff\xda")
    return data[:-2] + data[start:-2] * more + data[-2:]
