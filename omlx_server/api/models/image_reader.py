"""Reads the images of requests for one model: what its prompt shows, and later its pixels.

asyncio thread; slow work runs in worker threads. Facts of decoded files are cached, so the next
turn of a conversation decodes nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b

from omlx_server.api.worker_threads import RunInThread, Turns
from omlx_server.core.images import ImageSpan
from omlx_server.errors import BadRequest
from omlx_server.images.decode import decode, inspect
from omlx_server.images.prepare.prepared import (
    Detail,
    Floats,
    ImagePlan,
    Prepared,
    Preparer,
    run_digest,
)
from omlx_server.images.source import from_image_url
from omlx_server.text.image_marks import ImageMarkup, ImagePlaceholder

_CACHED_FILES = 8192


@dataclass(frozen=True, slots=True)
class TextOnly:
    """Stands in for the reader of a model without images. `why` may be empty."""

    why: str = ""

    def refusal(self, name: str, param: str) -> BadRequest:
        because = f": {self.why}" if self.why else ""
        return BadRequest(f"the model '{name}' takes text only{because}", param=param)


@dataclass(frozen=True, slots=True)
class GivenImage:
    """An image of a request. `url` should be a data URL; `param` names it in errors."""

    url: str
    param: str
    low: bool = False


@dataclass(frozen=True, slots=True)
class _FileFacts:
    """Facts of a decoded file: `full_size` is the size that the model sees at full detail, and
    `peak_bytes` the most that decoding holds. Sizes are height, width."""

    bitmap_size: tuple[int, int]
    bitmap_digest: bytes
    full_size: tuple[int, int]
    peak_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class ReadImage:
    """An image of a request, for one model. `digest` is that of the prepared pixels, `making_bytes`
    the most that `prepared` holds, `full_size` the size at full detail."""

    data: bytes = field(repr=False)
    preparer: Preparer
    plan: ImagePlan
    digest: bytes
    making_bytes: int
    full_size: tuple[int, int]

    def prepared(self) -> Prepared:
        """Decode the file and prepare its pixels. Slow."""
        return self.preparer.prepare(decode(inspect(self.data).scaled_for(*self.full_size)))

    def runs(self) -> tuple[ImageSpan, ...]:
        plan = self.plan
        return tuple(
            ImageSpan(
                start=0,
                count=plan.run_tokens,
                digest=run_digest(self.digest, plan, number),
                advance=plan.advance,
                whole=self.preparer.whole,
                grid=plan.grid,
                pixels=partial(self._pixels, number),
                nbytes=plan.pixel_bytes // plan.runs,
            )
            for number in range(plan.runs)
        )

    def _pixels(self, run: int) -> Floats:
        return self.prepared().of_run(run)


@dataclass(frozen=True, slots=True, eq=False)
class ImageReader:
    """Reads images for a model. `set_aside` reserves bytes. An image gets at most `max_tokens`,
    where the model leaves a choice."""

    make_preparer: Callable[[Detail], Preparer]
    markup: ImageMarkup
    set_aside: Callable[[int], AbstractAsyncContextManager[None]]
    max_tokens: int | None = None
    max_per_request: int = 100
    _facts_by_file: OrderedDict[bytes, _FileFacts] = field(default_factory=OrderedDict)
    # The preparers for low detail (True) and for full detail.
    _preparers: Mapping[bool, Preparer] = field(init=False)

    def __post_init__(self) -> None:
        preparers = {low: self.make_preparer(Detail(self.max_tokens, low)) for low in (False, True)}
        object.__setattr__(self, "_preparers", preparers)

    def bounded(self, max_tokens: int, max_per_request: int) -> "ImageReader":
        return replace(self, max_tokens=max_tokens, max_per_request=max_per_request)

    async def read(self, images: Sequence[GivenImage], turns: Turns) -> list[ReadImage]:
        """Raises BadRequest for too many images or a bad one, and Unavailable if one got no turn or
        no memory in time (NoMemory: never can)."""
        most = self.max_per_request
        if len(images) > most:
            raise BadRequest(
                f"there are {len(images)} images, and {most} are the most", param=images[most].param
            )
        results = []
        for image in images:
            try:
                results.append(await self._read_image(image, turns))
            except BadRequest as error:
                error.param = image.param
                raise
        return results

    async def _read_image(self, image: GivenImage, turns: Turns) -> ReadImage:
        async with turns() as run_in_thread:
            data, file_digest = await run_in_thread(lambda _: _read_file(image))
            facts = self._facts_by_file.get(file_digest)
            if facts is None:
                facts = await self._decode_facts(data, run_in_thread)
            self._cache_facts(file_digest, facts)
        preparer = self._preparers[image.low]
        plan = preparer.plan(*facts.bitmap_size)
        making_bytes = facts.peak_bytes + plan.working_bytes + plan.pixel_bytes
        pixel_digest = preparer.digest(facts.bitmap_digest)
        return ReadImage(data, preparer, plan, pixel_digest, making_bytes, facts.full_size)

    async def _decode_facts(self, data: bytes, run_in_thread: RunInThread) -> _FileFacts:
        header = await run_in_thread(lambda _: inspect(data))
        full_size = self._preparers[False].plan(*header.upright).size
        scaled = header.scaled_for(*full_size)
        async with self.set_aside(scaled.peak_bytes):
            bitmap_digest = await run_in_thread(lambda _: decode(scaled).digest)
        return _FileFacts(scaled.upright, bitmap_digest, full_size, scaled.peak_bytes)

    def shown(self, image: ReadImage) -> ImagePlaceholder:
        return ImagePlaceholder(self.markup.write(image.plan.tiles), image.runs())

    def _cache_facts(self, file_digest: bytes, facts: _FileFacts) -> None:
        self._facts_by_file[file_digest] = facts
        self._facts_by_file.move_to_end(file_digest)
        if len(self._facts_by_file) > _CACHED_FILES:
            self._facts_by_file.popitem(last=False)


def _read_file(image: GivenImage) -> tuple[bytes, bytes]:
    data = from_image_url(image.url)
    return data, blake2b(data, digest_size=32).digest()
