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

from omlx_server.api.worker_threads import Turns
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
from omlx_server.text.image_marks import ImagePlaceholder
from omlx_server.text.image_markup import ImageMarkup

SetAside = Callable[[int], AbstractAsyncContextManager[None]]
MakePreparer = Callable[[Detail], Preparer]

_REMEMBERED = 8192


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
    """Facts of a decoded file: size and digest of its bitmap, its size as the model sees it at full
    detail, and the most bytes that decoding holds. Sizes are height, width."""

    size: tuple[int, int]
    digest: bytes
    seen: tuple[int, int]
    peak_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class ReadImage:
    """An image of a request, for one model. `digest` is that of the prepared pixels, `making_bytes`
    the most that `prepared` holds, `seen` the size at full detail."""

    data: bytes = field(repr=False)
    preparer: Preparer
    plan: ImagePlan
    digest: bytes
    making_bytes: int
    seen: tuple[int, int]

    def prepared(self) -> Prepared:
        """Decode the file and prepare its pixels. Slow."""
        return self.preparer.prepare(decode(inspect(self.data).scaled_for(*self.seen)))

    def runs(self) -> tuple[ImageSpan, ...]:
        plan, count = self.plan, self.plan.run_tokens
        return tuple(
            ImageSpan(
                start=0,
                count=count,
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
    """Reads images for a model. `make` makes a preparer, `set_aside` reserves bytes. An image gets
    at most `max_tokens`, where the model leaves a choice."""

    make: MakePreparer
    markup: ImageMarkup
    set_aside: SetAside
    max_tokens: int | None = None
    max_per_request: int = 100
    _files: OrderedDict[bytes, _FileFacts] = field(default_factory=OrderedDict)
    _preparers: Mapping[bool, Preparer] = field(init=False)

    def __post_init__(self) -> None:
        preparers = {low: self.make(Detail(self.max_tokens, low)) for low in (False, True)}
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
                results.append(await self._read(image, turns))
            except BadRequest as error:
                error.param = image.param
                raise
        return results

    async def _read(self, image: GivenImage, turns: Turns) -> ReadImage:
        async with turns() as run:
            data, key = await run(lambda _: _file(image))
            facts = self._files.get(key)
            if facts is None:
                header = await run(lambda _: inspect(data))
                seen = self._preparers[False].plan(*header.upright).size
                header = header.scaled_for(*seen)
                async with self.set_aside(header.peak_bytes):
                    digest = await run(lambda _: decode(header).digest)
                facts = _FileFacts(header.upright, digest, seen, header.peak_bytes)
            self._remember(key, facts)
        preparer = self._preparers[image.low]
        plan = preparer.plan(*facts.size)
        making = facts.peak_bytes + plan.working_bytes + plan.pixel_bytes
        digest = preparer.digest(facts.digest)
        return ReadImage(data, preparer, plan, digest, making, facts.seen)

    def shown(self, image: ReadImage) -> ImagePlaceholder:
        return ImagePlaceholder(self.markup.write(image.plan.tiles), image.runs())

    def _remember(self, key: bytes, facts: _FileFacts) -> None:
        self._files[key] = facts
        self._files.move_to_end(key)
        if len(self._files) > _REMEMBERED:
            self._files.popitem(last=False)


def _file(image: GivenImage) -> tuple[bytes, bytes]:
    data = from_image_url(image.url)
    return data, blake2b(data, digest_size=32).digest()
