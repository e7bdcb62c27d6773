"""Jobs on the mlx thread that compute images for models with vision."""

from collections.abc import Sequence
from contextlib import ExitStack

from omlx_server.compute.vision.towers.grids import Floats
from omlx_server.compute.vision.vision import Vision
from omlx_server.core.images import ImageSpan
from omlx_server.core.memory.room import Boundless, Room, within
from omlx_server.core.work import Work
from omlx_server.engine.memory.reservations import JobRoom
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import BadRequest

# Claims for images let texts go first for so long.
_PATIENCE_SECONDS = 20.0


def images_to_compute(
    instance: ModelInstance, tokens: tuple[int, ...], salt: bytes, images: Sequence[ImageSpan]
) -> tuple[ImageSpan, ...]:
    """Return images, each digest once, whose features are missing. Raises BadRequest if the
    model has no vision."""
    vision = _vision_of(instance)
    cached = instance.cache.probe(tokens, salt).cached if instance.cache.layout.keeps else 0
    missing = dict[bytes, ImageSpan]()
    for image in images:
        if image.stop > cached and not vision.has(image.digest):
            missing.setdefault(image.digest, image)
    return tuple(missing.values())


def compute_image(instance: ModelInstance, image: ImageSpan, pixels: Floats) -> Work[None]:
    """Compute and keep an image's features, unless another job does. Raises BadRequest,
    ValueError for other pixels, NoMemory."""
    vision = _vision_of(instance)
    while vision.is_computing(image.digest):
        yield
    if vision.has(image.digest):
        return
    with vision.computing_alone(image.digest):
        work = vision.computing(image, pixels)
        yield from within(_room_of(instance), vision.needs(image), work)
    if instance.watch is not None:
        instance.features.trim(instance.watch.guard.limit)


class Aside:
    """Bytes set aside for work on other threads, from the end of `claiming` until `release`."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._released = False
        self._claims = ExitStack()

    def claiming(self, instance: ModelInstance) -> Work[None]:
        """Wait until the bytes are set aside. Raises NoMemory."""
        room = _room_of(instance)
        room.check(self._nbytes)
        claim = yield from room.claim([self._nbytes])
        if not self._released:
            self._claims.enter_context(claim)

    def release(self) -> None:
        self._released = True
        self._claims.close()


def _vision_of(instance: ModelInstance) -> Vision:
    vision = instance.runner.loaded.vision
    if vision is None:
        raise BadRequest("the model sees no images")
    return vision


def _room_of(instance: ModelInstance) -> Room:
    watch = instance.watch
    return Boundless() if watch is None else JobRoom(watch.share, _PATIENCE_SECONDS)
