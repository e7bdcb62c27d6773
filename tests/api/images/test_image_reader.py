"""What is read of an image once, in which order, and what memory is set aside for it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from omlx_server.api.chat.images import ChatImages, compute_features
from omlx_server.api.models.image_reader import GivenImage, ImageReader, ReadImage
from omlx_server.api.worker_threads import Turns, WorkerThreads
from omlx_server.core.images import ImageSpan
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.errors import BadRequest
from omlx_server.images.bitmap import Bitmap
from omlx_server.images.decode import inspect
from omlx_server.images.prepare.families import make_preparer
from omlx_server.images.prepare.prepared import Floats, run_digest
from omlx_server.text.image_marks import ImageMarks, ImageMarkup
from omlx_server.text.tokenizer import Tokenizer
from tests.api.images import forms
from tests.images.files import encoded, noise
from tests.text import vision_templates

SMOL = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}, "image_seq_len": 9}
PIXELS = noise(48, 64)
FILE = encoded(PIXELS, "PNG")


class Memory:
    """Notes the bytes that are set aside, and those at once."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.held: list[int] = []

    @asynccontextmanager
    async def aside(self, nbytes: int) -> AsyncIterator[None]:
        self.asked.append(nbytes)
        self.held.append(nbytes)
        assert len(self.held) == 1
        yield
        self.held.pop()


@pytest.fixture(name="memory")
def _memory() -> Memory:
    return Memory()


@pytest.fixture(name="reader")
def _reader(tmp_path: Path, memory: Memory) -> ImageReader:
    tokenizer = Tokenizer.load(vision_templates.save(tmp_path, "idefics3"))
    make = partial(make_preparer, SMOL, {"model_type": "smolvlm"})
    return ImageReader(make, ImageMarkup.of("idefics3", tokenizer), memory.aside)


def given(file: bytes, *, low: bool = False) -> GivenImage:
    return GivenImage(forms.url(file), "messages.0.content.0.image_url", low)


def turns() -> Turns:
    return partial(WorkerThreads("images", 2).turn, (b"client",))


def read(reader: ImageReader, *images: GivenImage) -> list[ReadImage]:
    return asyncio.run(reader.read(images, turns()))


def test_a_file_is_decoded_once(reader: ImageReader, memory: Memory) -> None:
    first, again, low = read(reader, given(FILE), given(FILE), given(FILE, low=True))
    assert memory.asked == [inspect(FILE).peak_bytes]
    assert (first.digest, first.plan) == (again.digest, again.plan)
    assert low.digest != first.digest
    [later] = read(reader.bounded(4096, 5), given(FILE))
    assert later.digest == first.digest
    assert len(memory.asked) == 1
    read(reader, given(encoded(PIXELS, "WEBP", lossless=True)))
    assert len(memory.asked) == 2


def test_images_are_decoded_one_after_the_other(reader: ImageReader, memory: Memory) -> None:
    files = [encoded(noise(48, 64, seed=seed), "PNG") for seed in range(5)]
    images = read(reader, *map(given, files))
    assert memory.asked == [inspect(file).peak_bytes for file in files]
    assert len({image.digest for image in images}) == 5


def test_what_is_shown_are_the_runs_of_its_tiles(reader: ImageReader) -> None:
    [image] = read(reader, given(FILE))
    shown = reader.shown(image)
    assert image.plan.tiles == (2, 2)
    assert shown.markup.count("<image>") == len(shown.runs) == 5
    whole = image.prepared()
    for number, run in enumerate(shown.runs):
        assert (run.count, run.advance, run.whole, run.grid) == (9, 9, False, image.plan.grid)
        assert run.digest == run_digest(image.digest, image.plan, number)
        assert run.pixels is not None
        pixels = run.pixels()
        assert isinstance(pixels, np.ndarray)
        assert np.array_equal(pixels, whole.of_run(number))
        assert pixels.nbytes == run.nbytes
    assert len({run.digest for run in shown.runs}) == 5


def test_the_digest_is_that_of_what_is_prepared(reader: ImageReader) -> None:
    [image] = read(reader, given(FILE))
    assert image.prepared().digest == image.digest
    assert image.preparer.digest(Bitmap(PIXELS).digest) == image.digest


def test_a_large_jpeg_is_prepared_as_it_was_read(reader: ImageReader, memory: Memory) -> None:
    file = encoded(noise(3000, 3000), "JPEG")
    read(reader, given(file, low=True))
    image, low = read(reader, given(file), given(file, low=True))
    [asked] = memory.asked
    assert asked < inspect(file).peak_bytes / 2
    assert image.prepared().digest == image.digest
    assert low.prepared().digest == low.digest


def test_memory_for_preparing_is_that_of_decoding_and_more(reader: ImageReader) -> None:
    [image] = read(reader, given(FILE))
    plan = image.plan
    assert image.making_bytes == inspect(FILE).peak_bytes + plan.working_bytes + plan.pixel_bytes


class Engine(Memory):
    """Notes what is seen of a prompt, of which it has seen `known` before."""

    def __init__(self, known: frozenset[bytes] = frozenset()) -> None:
        super().__init__()
        self.known = known
        self.seen: list[tuple[bytes, Floats]] = []

    async def images_to_compute(
        self, tokens: tuple[int, ...], salt: bytes, images: Sequence[ImageSpan]
    ) -> tuple[ImageSpan, ...]:
        assert (tokens, salt) == ((1, 2), b"salt")
        by_digest = {image.digest: image for image in images}
        return tuple(image for image in by_digest.values() if image.digest not in self.known)

    async def compute_image(self, image: ImageSpan, pixels: Floats) -> None:
        assert not self.held, "who waits for memory should hold none"
        self.seen.append((image.digest, pixels))

    def setting_aside(self, nbytes: int) -> AbstractAsyncContextManager[None]:
        return self.aside(nbytes)


def test_each_run_is_seen_once_with_its_own_pixels(reader: ImageReader) -> None:
    other = encoded(noise(60, 60, seed=5), "PNG")
    images = read(reader, given(FILE), given(other), given(FILE))
    runs = [run for image in images for run in image.runs()]
    by_digest = {run.digest: image for image in images for run in image.runs()}
    chat = ChatImages(ImageMarks(0), {}, by_digest, 0)
    request = Request(
        RequestId("a"), (1, 2), SamplingParams(max_tokens=1), salt=b"salt", images=tuple(runs)
    )
    engine = Engine(known=frozenset({runs[1].digest}))
    asyncio.run(compute_features(chat, request, cast(Any, engine), turns()))
    assert engine.asked == [images[0].making_bytes, images[1].making_bytes]
    expected = {run.digest: run for run in runs if run.digest != runs[1].digest}
    assert [digest for digest, _ in engine.seen] == list(expected)
    for digest, pixels in engine.seen:
        make = expected[digest].pixels
        assert make is not None and np.array_equal(pixels, make())  # type: ignore[arg-type]


@pytest.mark.parametrize("file", [b"no image", FILE[:-30], b"\x89PNG\r\n\x1a\n"])
def test_a_fault_names_its_image(reader: ImageReader, file: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        read(reader, given(FILE), GivenImage(forms.url(file), "messages.3"))
    assert caught.value.param == "messages.3"
    assert read(reader, given(FILE))


def test_too_many_images_are_not_looked_at(reader: ImageReader, memory: Memory) -> None:
    with pytest.raises(BadRequest, match="there are 3 images, and 2 are the most"):
        read(reader.bounded(4096, 2), *[given(b"no image")] * 3)
    assert memory.asked == []
