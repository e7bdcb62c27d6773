"""Jobs on the mlx thread beside a model's steps: adapters, images, scores."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import TypeVar

from omlx_server.compute import score
from omlx_server.compute.embed import yes_no
from omlx_server.compute.embed.batch import BatchResult
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.vision.towers.grids import Floats
from omlx_server.compute.vision.vision import Vision
from omlx_server.core.adapters import Adapter
from omlx_server.core.images import ImageSpan
from omlx_server.core.memory.kv import PrefillShape
from omlx_server.core.memory.room import within
from omlx_server.core.request import Logprobs
from omlx_server.core.work import Work
from omlx_server.engine.memory.reservations import JobRoom, job_room
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import AdapterUnusable, BadRequest

# For so long jobs for images let texts have memory first.
_PATIENCE_SECONDS = 20.0


def load_adapter(instance: ModelInstance, adapter: Adapter) -> Work[bool]:
    """Load an adapter; False if there is no place now. Raises AdapterUnusable, or as `within`."""
    adapters, model = instance.adapters, instance.runner.loaded.target
    if instance.ranks.are_several:
        raise AdapterUnusable("a model that several machines compute takes no adapters")
    if adapters.weights.touch(adapter):  # it is loaded already
        return True
    adapters.check(adapter)
    adapters.weights.check(model, adapter)
    while adapters.is_full(adapter) or not _fits_beside_requests(instance, adapter):
        idle = adapters.longest_idle()
        if idle is None:
            return False
        yield from _unload(instance, idle)
    nbytes = adapters.weights.needs(adapter)
    yield from within(job_room(instance.watch), nbytes, _load_weights(instance, adapter))
    return True


def unload_idle_adapters(instance: ModelInstance) -> Work[bool]:
    """Unload all idle adapters. Return whether there were any."""
    were_any = False
    while (idle := instance.adapters.longest_idle()) is not None:
        yield from _unload(instance, idle)
        were_any = True
    return were_any


def _fits_beside_requests(instance: ModelInstance, adapter: Adapter) -> bool:
    """Return whether the requests of all models would still fit beside this adapter."""
    if instance.watch is None:
        return True
    weights, account = instance.adapters.weights, instance.watch.share.account
    added_bytes = weights.nbytes_with(adapter) - weights.nbytes
    for holder in (share.holder for share in account.shares):
        if isinstance(holder, ModelInstance) and holder.watch is not None:
            guard = holder.watch.guard.under(account.limit - added_bytes, account.queue)
            if not holder.scheduler.all_fit(guard):
                return False
    return True


def _unload(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    nbytes = instance.adapters.weights.needs_without(adapter)
    yield from within(job_room(instance.watch), nbytes, _unload_if_idle(instance, adapter))


def _unload_if_idle(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    adapters = instance.adapters
    if adapters.is_idle(adapter):  # it may be used again since memory was asked for
        yield from adapters.weights.unloading(adapter)
        adapters.update_account(instance.watch)


def _load_weights(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    yield from instance.adapters.weights.loading(instance.runner.loaded.target, adapter)
    instance.adapters.update_account(instance.watch)


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


A = TypeVar("A")
Y = TypeVar("Y")

_job_numbers = count()  # by which other ranks tell jobs apart


def score_prompt(
    instance: ModelInstance, tokens: Sequence[int], top: int, adapter: Adapter | None = None
) -> Work[list[Logprobs]]:
    """Return log-probabilities of a prompt's tokens but the first. The adapter must stay loaded."""
    vocab = instance.runner.loaded.dims.vocab
    work = _score_on_all_ranks(instance.runner.loaded, tokens, top, adapter)
    rows = min(len(tokens), score.slice_rows(vocab))
    return _within_memory(instance, work, len(tokens), 1, rows, score.logits_bytes(vocab, rows))


def _score_on_all_ranks(
    loaded: LoadedModel, tokens: Sequence[int], top: int, adapter: Adapter | None
) -> Work[list[Logprobs]]:
    model, vocab = loaded.target, loaded.dims.vocab
    forward = loaded.adapters.adapted(model, [adapter])
    tell_ranks = partial(loaded.ranks.score, next(_job_numbers))
    try:
        return (yield from score.score_prompt(model, vocab, tokens, top, forward, tell_ranks))
    finally:
        tell_ranks(())  # the job has ended


def judge_prompts(
    instance: ModelInstance, prompts: Sequence[Sequence[int]], *, yes: int, no: int
) -> Generator[BatchResult | None, None, None]:
    """Return how likely the model answers each prompt with yes rather than no."""
    loaded, chunk = instance.runner.loaded, device_policy.current().chunk
    parts = instance.runner.parts
    work = yes_no.score(loaded.target, prompts, yes=yes, no=no, slice_tokens=chunk, parts=parts)
    longest, logits_bytes = max(map(len, prompts), default=0), score.logits_bytes
    # Two caches: the common prefix of all prompts, and a copy for each prompt.
    return _within_memory(instance, work, longest, 2, chunk, logits_bytes(loaded.dims.vocab, 1))


def _within_memory(
    instance: ModelInstance,
    work: Generator[Y, None, A],
    tokens: int,
    caches: int,
    chunk: int,
    logits_bytes: int,
) -> Generator[Y | None, None, A]:
    """Set memory aside, then do the work: prompts of `tokens`, `chunk` tokens at a time."""
    if instance.watch is None:
        return work
    planner, rows = instance.watch.planner, max(1, min(chunk, tokens))
    step_bytes = planner.prefill(PrefillShape(1, rows, max(0, tokens - rows)))
    nbytes = caches * planner.live([tokens]) + step_bytes + logits_bytes
    return within(JobRoom(instance.watch.share), nbytes, work)
