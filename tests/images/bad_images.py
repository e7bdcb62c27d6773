"""Images that no server should take, each with a part of the message that refuses it. They are made
from small ones, so that making them needs no memory either."""

import struct
from collections.abc import Iterator

from PIL import Image

from tests.images.files import (
    FORMATS,
    PNG,
    animated,
    chunk,
    encoded,
    endless,
    noise,
    packed,
    png,
    progressive,
    rows,
    small,
    with_size,
)

Bad = tuple[str, bytes, str]


def bad_images() -> list[Bad]:
    """Name, bytes, part of the message."""
    found = [*_cut_off(), *_of_other_kinds(), *_too_large(), *_png(), *_jpeg(), *_gif(), *_webp()]
    assert len({name for name, _, _ in found}) == len(found)
    return found


def _cut_off() -> Iterator[Bad]:
    for kind in FORMATS:
        data = small(kind)
        for share in (0.1, 0.25, 0.5, 0.75, 0.9):
            yield f"{kind} at {share}", data[: max(16, int(len(data) * share))], "cut off"
        # The last byte of a GIF ends the row of its frames; the image is whole without it.
        missing = 2 if kind == "GIF" else 1
        yield f"{kind} without its end", data[:-missing], "cut off"


def _of_other_kinds() -> Iterator[Bad]:
    image = Image.fromarray(noise(8, 8))
    written = [("BMP", "BMP"), ("TIFF", "TIFF"), ("ICO", "ICO"), ("PPM", "Netpbm")]
    for kind, name in [*written, ("PDF", "PDF"), ("JPEG2000", "JPEG 2000"), ("AVIF", "AVIF")]:
        yield kind, encoded(image, kind), name
    yield "HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64), "HEIC"
    yield "MP4", b"\0\0\0\x18ftypisom\0\0\2\0" + bytes(64), "MP4"
    yield "SVG", b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', "SVG"
    yield "SVG in XML", b'\xef\xbb\xbf<?xml version="1.0"?>\n<svg width="9"/>', "SVG"
    yield "HTML", b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "HTML"
    yield "script", b"#!/bin/sh\nrm -rf /\n", "script"
    yield "script named PNG", PNG + b"#!/bin/sh\nrm -rf /\n", "PNG"
    yield "archive", b"PK\x03\x04" + bytes(99), "ZIP"
    yield "text", b"this is an image of a cat", "no format that is known"
    yield "nothing", b"", "no format that is known"
    yield "zeros", bytes(4096), "no format that is known"
    yield "JSON", b'{"error": "not found"}', "no format that is known"
    yield "AVI", b"RIFF\x40\0\0\0AVI " + bytes(64), "AVI"
    yield "JPEG XL", b"\xff\x0a" + bytes(64), "JPEG XL"


def _too_large() -> Iterator[Bad]:
    for kind in FORMATS:
        if kind != "WEBP":
            yield f"{kind} 20,000 x 20,000", with_size(kind, 20_000, 20_000), "20000 x 20000"
            yield f"{kind} 0 x 0", with_size(kind, 0, 0), "no pixels"
            yield f"{kind} 0 x 9", with_size(kind, 0, 9), "no pixels"
        yield f"{kind} 16,000 x 4,000", with_size(kind, 16_000, 4_000), "50 million"
    yield "WebP 16,384 x 16,384", with_size("WEBP", 16_384, 16_384), "16384 x 16384"
    yield "PNG of 2^32 - 1", with_size("PNG", 2**32 - 1, 2**32 - 1), "too large"
    yield "PNG of one row", with_size("PNG", 40_000_000, 1), "an edge may have"
    for kind in ("PNG", "JPEG", "GIF"):
        yield f"{kind} with too little data", with_size(kind, 7_000, 7_000), "cut off"


def _png() -> Iterator[Bad]:
    raw = rows(noise(4, 4))
    yield "PNG of 3 bits", png((4, 4), raw, bits=3), "no PNG has"
    yield "PNG of colour 5", png((4, 4), raw, colour=5), "no PNG has"
    yield "PNG interlaced in another way", png((4, 4), raw, interlaced=7), "no PNG has"
    yield "PNG that lacks rows", png((4, 4), raw[:-13]), "cut off"
    yield "PNG without data", PNG + small("PNG")[8:33] + chunk(b"IEND", b""), "cut off"
    yield "PNG without header", PNG + chunk(b"IEND", b""), "no header"
    yield "PNG of many chunks", png((4, 4), raw, before=chunk(b"tEXt", b"") * 70_000), "chunks"
    broken = bytearray(small("PNG"))
    broken[broken.index(b"IDAT") + 40] ^= 0xFF
    yield "PNG with a wrong byte", bytes(broken), "the PNG is broken"
    header = bytearray(small("PNG"))
    header[30] ^= 0xFF
    yield "PNG with a wrong checksum", bytes(header), "can't be decoded"
    not_packed = chunk(b"IDAT", b"not packed at all")
    yield "PNG not packed", small("PNG")[:33] + not_packed + chunk(b"IEND", b""), "unpacked"
    palette = png((4, 4), rows(noise(4, 4, 1)), colour=3)
    yield "PNG without palette", palette, "no palette"
    length = struct.pack(">I", 2**32 - 1)
    yield "PNG of a huge chunk", small("PNG")[:33] + length + b"IDAT" + bytes(64), "cut off"
    filters = png((4, 4), b"".join(b"\x09" + bytes(12) for _ in range(4)))
    yield "PNG with unknown filters", filters, "the PNG is broken"


def _jpeg() -> Iterator[Bad]:
    good = small("JPEG")
    frame = good.index(b"\xff\xc0")
    yield "JPEG of 5,000 scans", progressive(5_000), "100 scans"
    large = with_size("JPEG", 7_000, 7_000)
    scan = large[large.index(b"\xff\xda") : -2] + bytes(20_000)
    yield "JPEG of large scans", large[:-2] + bytes(20_000) + scan * 25 + large[-2:], "too long"
    yield "JPEG lossless", good[:frame] + b"\xff\xc3" + good[frame + 2 :], "rare kind"
    yield "JPEG arithmetic", good[:frame] + b"\xff\xc9" + good[frame + 2 :], "rare kind"
    yield "JPEG of 12 bits", good[: frame + 4] + b"\x0c" + good[frame + 5 :], "12 bits"
    yield "JPEG of two sizes", good[:frame] + good[frame : frame + 19] + good[frame:], "two sizes"
    yield "JPEG without frame", good[:frame] + good[frame + 19 :], "before its size"
    yield "JPEG in a JPEG", good[:2] + good, "begins inside"
    yield "JPEG of a start and an end", b"\xff\xd8\xff\xd9", "no data"
    segments = b"\xff\xfe\0\2" * 20_000
    yield "JPEG of many segments", good[:2] + segments + good[2:], "segments"
    inks = bytearray(good)
    inks[frame + 9] = 2
    yield "JPEG of two colours", bytes(inks), "not known"


def _gif() -> Iterator[Bad]:
    good = small("GIF")
    yield "GIF without frame", good[: good.index(b"\x2c\0\0\0\0")] + b"\x3b", "no frame"
    comments = b"\x21\xfe" + b"\1x" * 1_100_000 + b"\0"
    frame = good.index(b"\x2c\0\0\0\0")
    yield "GIF of many blocks", good[:frame] + comments + good[frame:], "blocks"
    wide = bytearray(good)
    wide[frame + 1 : frame + 5] = struct.pack("<HH", 65_000, 65_000)
    yield "GIF with a frame far away", bytes(wide), "too large"
    codes = good.index(b"\x08", frame)
    yield "GIF without data", good[: codes + 1] + b"\0\x3b", "the GIF is broken"


def _webp() -> Iterator[Bad]:
    good = small("WEBP")
    yield "WebP without image", b"RIFF\x04\0\0\0WEBP", "no image"
    wrong = bytearray(good)
    wrong[20] ^= 0xFF
    yield "WebP with a wrong header", bytes(wrong), "no header"
    wrong = bytearray(good)
    wrong[40:60] = bytes(20)
    yield "WebP with wrong data", bytes(wrong), "WebP is broken"
    chunks = b"JUNK\0\0\0\0" * 70_000
    body = b"WEBP" + chunks + good[12:]
    yield "WebP of many chunks", b"RIFF" + struct.pack("<I", len(body)) + body, "chunks"
    moving = bytearray(animated("WEBP", 3))
    at = moving.index(b"VP8X") + 12
    moving[at : at + 6] = b"\0\0\0\0\0\0"
    yield "WebP animated, of one pixel", bytes(moving), "larger than its header"
    moving[at : at + 6] = b"\xff" * 6
    yield "WebP animated, 2^24 x 2^24", bytes(moving), "too large"
    empty = bytearray(animated("WEBP", 3))
    first = empty.index(b"ANMF") + 24
    empty[first : first + 4] = b"JUNK"
    yield "WebP with an empty frame", bytes(empty), "first frame is empty"


def bombs() -> list[tuple[str, bytes]]:
    """Small files that are images, with parts that would need much memory or time; these parts
    are never looked at."""
    raw, zeros = rows(noise(4, 4)), packed(b"", 200)
    text = chunk(b"zTXt", b"Comment\0\0" + zeros)
    profile = chunk(b"iCCP", b"profile\0\0" + zeros)
    international = chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zeros)
    endlessly = chunk(b"IDAT", endless(raw, 1_000))
    good = small("JPEG")
    return [
        ("PNG with a packed text", png((4, 4), raw, before=text)),
        ("PNG with a packed profile", png((4, 4), raw, before=profile)),
        ("PNG with packed XMP", png((4, 4), raw, before=international)),
        ("PNG with 10 GB behind its rows", png((4, 4), b"", before=endlessly)),
        ("GIF of 2,000 frames", animated("GIF", 2_000, (4, 4))),
        ("WebP of 2,000 frames", animated("WEBP", 2_000, (4, 4))),
        ("JPEG with segments", good[:2] + (b"\xff\xe2\xff\xff" + bytes(65_533)) * 99 + good[2:]),
    ]
