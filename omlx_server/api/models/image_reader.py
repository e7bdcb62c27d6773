"""Reads the images of requests for one model: from what a client has sent to what the model's
prompt shows, and later to the pixels that its tower takes.

Its methods run on the asyncio thread, and all that takes a while in worker threads. Each image is
read in a turn of its own, with memory set aside while it is decoded. Of a file that was decoded
once its size and its digest are remembered, so that the next turn of a conversation decodes
nothing.
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
    """Stands in the place of a reader, for a model that takes no images. `why` says why not; it is
    empty where there is nothing to say."""

    why: str = ""

    def refusal(self, name: str, param: str) -> BadRequest:
        """The error for a request to the model of this name with an image at `param`."""
        because = f": {self.why}" if self.why else ""
        return BadRequest(f"the model '{name}' takes text only{because}", param=param)


@dataclass(frozen=True, slots=True)
class GivenImage:
    """An image of a request. `url` is a data URL, or what was sent in its place; `low` asks for low
    detail; `param` names it in errors."""

    url: str
    param: str
    low: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    """What is remembered of a file: the size and the digest of its bitmap, its size as the model
    sees it closely, and the most bytes that decoding it holds. Sizes are height and width."""

    size: tuple[int, int]
    digest: bytes
    seen: tuple[int, int]
    peak_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class ReadImage:
    """An image of a request, for one model. `data` is its file; `digest` is that of what will be
    prepared of it; `making_bytes` is the most that `prepared` holds at once, its result included.
    The model sees it in the size `seen` where it looks closely."""

    data: bytes = field(repr=False)
    preparer: Preparer
    plan: ImagePlan
    digest: bytes
    making_bytes: int
    seen: tuple[int, int]

    def prepared(self) -> Prepared:
        """Decode the file and prepare its pixels for the tower, which takes a while."""
        return self.preparer.prepare(decode(inspect(self.data).scaled_for(*self.seen)))

    def runs(self) -> tuple[ImageSpan, ...]:
        """The runs of image tokens that show it."""
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
    """`make` makes the model's preparer of images of some detail. `set_aside` sets bytes of memory
    aside for a while. An image gets at most `max_tokens` where the model leaves a choice, and a
    request may have at most `max_per_request` images."""

    make: MakePreparer
    markup: ImageMarkup
    set_aside: SetAside
    max_tokens: int | None = None
    max_per_request: int = 100
    _known: OrderedDict[bytes, _Known] = field(default_factory=OrderedDict)
    _preparers: Mapping[bool, Preparer] = field(init=False)

    def __post_init__(self) -> None:
        preparers = {low: self.make(Detail(self.max_tokens, low)) for low in (False, True)}
        object.__setattr__(self, "_preparers", preparers)

    def bounded(self, max_tokens: int, max_per_request: int) -> "ImageReader":
        """A copy with other bounds, which remembers the same files."""
        return replace(self, max_tokens=max_tokens, max_per_request=max_per_request)

    async def read(self, given: Sequence[GivenImage], turns: Turns) -> list[ReadImage]:
        """The images of a request.

        Raises:
            BadRequest: they are too many, or one can't be taken; `param` names it.
            Unavailable: one had no turn or no memory in time; NoMemory if it never can.
        """
        most = self.max_per_request
        if len(given) > most:
            raise BadRequest(
                f"there are {len(given)} images, and {most} are the most", param=given[most].param
            )
        return [await self._read(image, turns) for image in given]

    async def _read(self, given: GivenImage, turns: Turns) -> ReadImage:
        async with turns() as run:
            data, key = await run(lambda _: _file(given))
            known = self._known.get(key)
            if known is None:
                header = await run(lambda _: inspect(data, param=given.param))
                seen = self._plan(header.upright, given).size
                header = header.scaled_for(*seen)
                async with self.set_aside(header.peak_bytes):
                    digest = await run(lambda _: decode(header, param=given.param).digest)
                known = _Known(header.upright, digest, seen, header.peak_bytes)
            self._remember(key, known)
        preparer = self._preparers[given.low]
        plan = self._plan(known.size, given, low=given.low)
        making = known.peak_bytes + plan.working_bytes + plan.pixel_bytes
        digest = preparer.digest(known.digest)
        return ReadImage(data, preparer, plan, digest, making, known.seen)

    def _plan(self, size: tuple[int, int], given: GivenImage, *, low: bool = False) -> ImagePlan:
        """What an image of this height and width takes."""
        try:
            return self._preparers[low].plan(*size)
        except BadRequest as error:
            raise BadRequest(error.message, param=given.param) from None

    def shown(self, image: ReadImage) -> ImagePlaceholder:
        """How the model's prompt shows an image."""
        return ImagePlaceholder(self.markup.write(image.plan.tiles), image.runs())

    def _remember(self, key: bytes, known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


def _file(given: GivenImage) -> tuple[bytes, bytes]:
    """The bytes of an image's file, and their digest."""
    data = from_image_url(given.url, param=given.param)
    return data, blake2b(data, digest_size=32).digest()
