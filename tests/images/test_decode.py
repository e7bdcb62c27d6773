"""From files to images: every mode comes out in red, green and blue."""

import struct
import subprocess
import sys
import tomllib
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

from omlx_server.errors import BadRequest
from omlx_server.images import limits
from omlx_server.images.bitmap import Bitmap
from omlx_server.images.decode import decode, inspect, upright
from omlx_server.images.formats import jpeg
from omlx_server.images.resize import Resample, resize
from tests.images.files import (
    FORMATS,
    animated,
    chunk,
    encoded,
    noise,
    png,
    progressive,
    rows,
    small,
)

ROOT = Path(__file__).parents[2]
RGB, RGBA = noise(33, 47), noise(33, 47, 4)
GREY, DEEP = RGB[:, :, 0], np.arange(33 * 47, dtype=np.uint16).reshape(33, 47) * 42


def bitmap_of(data: bytes) -> Bitmap:
    return decode(inspect(data))


def over_white(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    colours = pixels[..., :3].astype(np.float64)
    share = pixels[..., 3:].astype(np.float64) / 255
    return np.asarray(np.rint(colours * share + 255 * (1 - share)), dtype=np.uint8)


def as_rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"compress_level": 0}])
def test_a_png_comes_out_as_it_is(options: dict[str, Any]) -> None:
    result = bitmap_of(encoded(RGB, "PNG", **options))
    assert (result.height, result.width) == (33, 47)
    assert np.array_equal(result.pixels, RGB)
    assert result.pixels.dtype == np.uint8
    assert result.pixels.flags.c_contiguous
    assert not result.pixels.flags.writeable


def test_alpha_is_laid_over_white() -> None:
    for data in (encoded(RGBA, "PNG"), encoded(RGBA, "WEBP", lossless=True, exact=True)):
        difference = bitmap_of(data).pixels.astype(int) - over_white(RGBA)
        assert abs(difference).max() <= 1
    grey = RGBA[:, :, 2:]
    result = bitmap_of(encoded(Image.fromarray(grey, "LA"), "PNG")).pixels
    assert abs(result[:, :, :1].astype(int) - over_white(grey[:, :, [0, 0, 0, 1]])).max() <= 1


def test_what_is_transparent_is_white() -> None:
    clear = np.concatenate([RGB, np.zeros((33, 47, 1), dtype=np.uint8)], axis=2)
    assert (bitmap_of(encoded(clear, "PNG")).pixels == 255).all()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_of_few_bits_is_scaled(bits: int) -> None:
    values = np.arange(2**bits, dtype=np.uint8)
    raw = (
        b"\0" + np.packbits(np.unpackbits(values[:, None], axis=1)[:, -bits:].reshape(-1)).tobytes()
    )
    result = bitmap_of(png((2**bits, 1), raw, bits=bits, colour=0)).pixels
    assert np.array_equal(result[0], np.repeat(values * (255 // (2**bits - 1)), 3).reshape(-1, 3))


def test_one_bit_and_grey_come_out_grey() -> None:
    black_and_white = Image.fromarray(GREY).convert("1")
    for image in (black_and_white, Image.fromarray(GREY)):
        assert np.array_equal(bitmap_of(encoded(image, "PNG")).pixels, as_rgb(image))


def test_16_bits_are_scaled_and_not_clipped() -> None:
    grey = bitmap_of(encoded(DEEP, "PNG")).pixels
    assert np.array_equal(grey, np.repeat((DEEP >> 8).astype(np.uint8)[..., None], 3, axis=2))
    deep = noise(5, 7, 6).view(">u2")
    colours = bitmap_of(png((7, 5), rows(deep), bits=16)).pixels
    assert np.array_equal(colours, (deep >> 8).astype(np.uint8))
    alpha = noise(5, 7, 8).view(">u2")
    expected = over_white((alpha >> 8).astype(np.uint8)).astype(int)
    result = bitmap_of(png((7, 5), rows(alpha), bits=16, colour=6)).pixels
    assert abs(result - expected).max() <= 1


def test_a_transparent_grey_of_16_bits_is_white() -> None:
    deep = np.array([[7, 256, 513]], dtype=">u2")
    data = png((3, 1), rows(deep), bits=16, colour=0, before=chunk(b"tRNS", b"\1\0"))
    assert bitmap_of(data).pixels[0, :, 0].tolist() == [0, 255, 2]


def test_palettes_and_transparent_colours_are_looked_up() -> None:
    flat = Image.fromarray(RGB).quantize(16)
    assert np.array_equal(bitmap_of(encoded(flat, "PNG")).pixels, as_rgb(flat))
    assert np.array_equal(bitmap_of(encoded(flat, "GIF")).pixels, as_rgb(flat))
    for transparent in (3, bytes([0, 0, 0, 0, 128])):
        data = encoded(flat, "PNG", transparency=transparent)
        expected = over_white(np.asarray(flat_alpha(flat, transparent)))
        assert abs(bitmap_of(data).pixels.astype(int) - expected).max() <= 1
    data = png((1, 2), rows(RGB[:2, :1]), before=chunk(b"tRNS", struct.pack(">3H", *RGB[0, 0])))
    assert bitmap_of(data).pixels.tolist() == [[[255] * 3], RGB[1, :1].tolist()]


def flat_alpha(flat: Image.Image, transparent: int | bytes) -> Image.Image:
    copy = flat.copy()
    copy.info["transparency"] = transparent
    return copy.convert("RGBA")


@pytest.mark.parametrize("colour", [0, 2, 6])
def test_interlaced_is_the_same_image(colour: int) -> None:
    pixels = {0: GREY, 2: RGB, 6: RGBA}[colour]
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2)]
    raw = b"".join(rows(pixels[y::down, x::across]) for x, y, across, down in passes)
    raw += rows(pixels[1::2])
    interlaced = bitmap_of(png((47, 33), raw, colour=colour, interlaced=1))
    assert interlaced.digest == bitmap_of(png((47, 33), rows(pixels), colour=colour)).digest


def test_tiny_interlaced_images_leave_passes_out() -> None:
    for height in range(1, 6):
        data = png((1, height), rows(noise(height, 1)), interlaced=0)
        assert bitmap_of(data).height == height
    one = noise(1, 1)
    assert np.array_equal(bitmap_of(png((1, 1), rows(one), interlaced=1)).pixels, one)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK", "YCbCr"])
@pytest.mark.parametrize("is_progressive", [False, True])
@pytest.mark.parametrize("sampling", [0, 2])
def test_a_jpeg_comes_out_as_pillow_has_it(mode: str, is_progressive: bool, sampling: int) -> None:
    image = Image.fromarray(RGB).convert(mode)
    data = encoded(image, "JPEG", progressive=is_progressive, subsampling=sampling)
    assert np.array_equal(bitmap_of(data).pixels, as_rgb(Image.open(BytesIO(data))))


def test_what_a_jpeg_says_about_its_colours_is_kept() -> None:
    """Without Adobe's segment, which says that they are red, green and blue, these would be taken
    for brightness and two differences."""
    data = encoded(RGB, "JPEG", keep_rgb=True, quality=100, subsampling=0)
    named = data.replace(b"R\x11\0G\x11\0B\x11\0", b"\1\x11\0\2\x11\0\3\x11\0")
    scan = named.index(b"\xff\xda") + 5
    named = named[:scan] + b"\1\0\2\0\3\0" + named[scan + 6 :]
    assert named.count(b"Adobe") == 1 and named != data
    assert abs(bitmap_of(named).pixels.astype(int) - RGB).max() < 8


def test_a_lossy_webp_comes_out_as_pillow_has_it() -> None:
    data = encoded(RGB, "WEBP")
    assert np.array_equal(bitmap_of(data).pixels, as_rgb(Image.open(BytesIO(data))))


def test_the_same_image_has_one_digest_in_all_lossless_files() -> None:
    flat = np.asarray(Image.fromarray(RGB).quantize(200).convert("RGB"))
    files = [encoded(flat, "PNG"), encoded(flat, "WEBP", lossless=True)]
    files += [encoded(flat, "PNG", compress_level=0), encoded(Image.fromarray(flat), "GIF")]
    with_alpha = Image.fromarray(flat).convert("RGBA")
    files += [encoded(with_alpha, "PNG"), encoded(with_alpha, "WEBP", lossless=True)]
    assert {bitmap_of(data).digest for data in files} == {Bitmap(flat).digest}
    assert len(Bitmap(flat).digest) == 32


def test_one_pixel_makes_another_digest() -> None:
    digests = {Bitmap(RGB).digest}
    for place in ((0, 0, 0), (32, 46, 2), (17, 3, 1)):
        changed = RGB.copy()
        changed[place] ^= 1
        digests.add(bitmap_of(encoded(changed, "PNG")).digest)
        digests.add(bitmap_of(encoded(changed, "WEBP", lossless=True)).digest)
    assert len(digests) == 4


def test_the_shape_is_part_of_the_digest() -> None:
    white = [np.full((2, 8, 3), 255, np.uint8), np.full((8, 2, 3), 255, np.uint8)]
    assert Bitmap(white[0]).digest != Bitmap(white[1]).digest


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_the_orientation_of_exif_is_applied(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x010E], exif[0x0112] = "a description before it", orientation
    lossless = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(RGB, kind, exif=exif, **lossless)
    with Image.open(BytesIO(data)) as image:
        expected = as_rgb(ImageOps.exif_transpose(image))
    assert np.array_equal(bitmap_of(data).pixels, expected)


def test_turning_is_undone_by_the_opposite_turn() -> None:
    opposite = {6: 8, 8: 6}
    for orientation in range(1, 9):
        back = upright(upright(RGB, orientation), opposite.get(orientation, orientation))
        assert np.array_equal(back, RGB)


def test_broken_exif_turns_nothing() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    whole = exif.tobytes()
    for end in range(len(whole) - 1):
        data = encoded(RGB, "JPEG", exif=whole[:end])
        assert inspect(data).orientation in (1, 6)
        assert bitmap_of(data).width in (33, 47)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_it_is_the_first_frame(kind: str) -> None:
    result = bitmap_of(animated(kind, 5))
    assert (result.pixels == (255, 0, 0)).all()
    assert (result.width, result.height) == (16, 24)


def test_what_is_transparent_in_a_gif_is_white() -> None:
    flat = Image.fromarray(RGB).quantize(16)
    result = bitmap_of(encoded(flat, "GIF", transparency=3)).pixels
    expected = np.where(np.asarray(flat)[..., None] == 3, np.uint8(255), as_rgb(flat))
    assert np.array_equal(result, expected)


def test_a_gif_may_lack_its_last_byte_and_a_jpeg_may_have_more() -> None:
    assert bitmap_of(small("GIF")[:-1]).digest == bitmap_of(small("GIF")).digest
    for kind in FORMATS:
        assert bitmap_of(small(kind) + b"more").digest == bitmap_of(small(kind)).digest


def test_a_declared_name_counts_for_nothing_and_bytes_decide() -> None:
    assert {inspect(small(kind)).kind.upper() for kind in FORMATS} == set(FORMATS)


def test_scans_are_counted_in_the_work_and_in_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    few, once = inspect(progressive(10)), inspect(encoded(np.zeros((64, 64, 3), np.uint8), "JPEG"))
    assert few.codec_bytes > once.codec_bytes == 0
    assert bitmap_of(progressive(100)).width == 64
    monkeypatch.setattr(jpeg, "MOST_SCANNED", 64 * 64 * 9)
    with pytest.raises(BadRequest, match="takes too long"):
        inspect(progressive(10))


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(("side", "scale"), [(80, 1), (60, 2), (25, 4), (12, 8), (5, 8)])
def test_a_large_jpeg_is_decoded_with_fewer_pixels(side: int, scale: int, orientation: int) -> None:
    """Never fewer than twice those it will be resized to."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth = np.asarray(Image.fromarray(RGB[:6, :5]).resize((250, 303), Image.Resampling.BICUBIC))
    whole = inspect(encoded(smooth, "JPEG", exif=exif, quality=95, subsampling=0))
    header = whole.scaled_for(side, side)
    assert header.scale == scale
    assert (header.peak_bytes < whole.peak_bytes) == (scale > 1)
    bitmap = decode(header)
    assert (bitmap.height, bitmap.width) == whole.upright
    assert bitmap.pixels.shape[:2] == tuple(-(-edge // scale) for edge in whole.upright)
    small, exact = (
        resize(made.pixels, side, side, Resample.BICUBIC).astype(int)
        for made in (bitmap, decode(whole))
    )
    assert abs(small - exact).mean() < 6


def test_other_formats_are_decoded_whole() -> None:
    large = np.zeros((400, 400, 3), np.uint8)
    for kind in ("PNG", "WEBP", "GIF"):
        assert inspect(encoded(large, kind)).scaled_for(20, 20).scale == 1


def test_images_of_other_sizes_are_others_though_their_pixels_are_the_same() -> None:
    digests = {
        decode(inspect(encoded(np.zeros((401, edge, 3), np.uint8), "JPEG")).scaled_for(9, 9)).digest
        for edge in (401, 402)
    }
    assert len(digests) == 2


def test_bounds_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(RGB, "PNG")
    for name, most in (("MOST_PIXELS", 33 * 47), ("MOST_EDGE", 47)):
        monkeypatch.setattr(limits, name, most)
        assert inspect(data).pixels == 33 * 47
        with monkeypatch.context() as lower, pytest.raises(BadRequest, match="47 x 33"):
            lower.setattr(limits, name, most - 1)
            inspect(data)


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 4), (0, 2, 3)])
def test_other_arrays_are_no_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no pixels"):
        Bitmap(np.zeros(shape, dtype=np.uint8))


def test_the_extra_pins_the_pillow_that_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert extras["vision"] == [f"pillow=={version('pillow')}"]
    assert set(extras["vision"]) < set(extras["test"])


def test_nothing_prints_its_pixels() -> None:
    header = inspect(small("PNG"))
    assert len(repr(header)) < 200
    assert len(repr(decode(header))) < 200


WITHOUT = """
import sys
sys.modules["PIL"] = None
from omlx_server.errors import BadRequest
from omlx_server.images.decode import decode, inspect
from omlx_server.images.prepare.families import make_preparer
make_preparer({}, {"model_type": "qwen3_vl"})
try:
    decode(inspect(sys.stdin.buffer.read()))
except BadRequest as error:
    print(error.message)
"""


def test_without_the_extra_the_message_says_how_to_get_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        input=small("PNG"),
        capture_output=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.startswith(b"this server")
    assert b"uv tool install '.[vision]'" in done.stdout
