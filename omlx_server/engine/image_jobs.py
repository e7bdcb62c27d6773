"""Jobs on the mlx thread that compute images for models with vision."""

from collections.abc import Sequence
from contextlib import ExitStack

from omlx_server.compute.vision.towers.grids import Floats
from omlx_server.compute.vision.vision import Vision
from omlx_server.core.images import ImageSpan
from omlx_server.core.memory.room import within
from omlx_server.core.work import Work
from omlx_server.engine.memory.reservations import job_room
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import BadRequest

# For so long jobs for images let texts have memory first.
_PATIENCE_SECONDS = 20.0


def images_to_compute(
    instance: ModelInstance, tokens: tuple[int, ...], salt: bytes, images: Sequence[ImageSpan]
) -> tuple[ImageSpan, ...]:
    """Return images, each digest once, without features. Raises BadRequest without vision."""
    vision = _vision_of(instance)
    cached = instance.cache.probe(tokens, salt).cached if instance.cache.layout.keeps else 0
    missing = dict[bytes, ImageSpan]()
    for image in images:
        if image.stop > cached and not vision.has(image.digest):
            missing.setdefault(image.digest, image)
    return tuple(missing.values())


def compute_image(instance: ModelInstance, image: ImageSpan, pixels: Floats) -> Work[None]:
    """Compute and keep an image's features. Raises BadRequest, ValueError, NoMemory."""
    vision = _vision_of(instance)
    while vision.is_computing(image.digest):
        yield
    if vision.has(image.digest):
        return
    with vision.computing_alone(image.digest):
        room, work = job_room(instance.watch, _PATIENCE_SECONDS), vision.computing(image, pixels)
        yield from within(room, vision.needs(image), work)
    if instance.watch is not None:
        instance.features.trim(instance.watch.guard.limit)


class ReservedBytes:
    """Bytes set aside for work on other threads, from the end of `claim` until `release`."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._released = False
        self._claimed = ExitStack()

    def claim(self, instance: ModelInstance) -> Work[None]:
        """Wait until the bytes are set aside. Raises NoMemory."""
        room = job_room(instance.watch, _PATIENCE_SECONDS)
        room.check(self._nbytes)
        claimed = yield from room.claim([self._nbytes])
        if not self._released:
            self._claimed.enter_context(claimed)

    def release(self) -> None:
        self._released = True
        self._claimed.close()


def _vision_of(instance: ModelInstance) -> Vision:
    vision = instance.runner.loaded.vision
    if vision is None:
        raise BadRequest("the model sees no images")
    return vision
