"""Clients of one model on the mlx thread."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from omlx_server import clock
from omlx_server.compute.vision.towers.grids import Floats
from omlx_server.core.adapters import Adapter
from omlx_server.core.blocks.pins import Pin
from omlx_server.core.images import ImageSpan
from omlx_server.core.prefix_cache.report import PromptReport
from omlx_server.core.request import Logprobs, Request
from omlx_server.core.scheduler.limits import Load as Occupied
from omlx_server.core.scheduler.standings import Standing
from omlx_server.core.work import Work
from omlx_server.engine import model_jobs
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.client.generation import Generation
from omlx_server.engine.messages import EngineCall, EngineState, ModelId, Removable, Status, Submit
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.model_jobs import score_prompt
from omlx_server.errors import NoMemory, NotNow, Unavailable

# Longest wait of a request for a place for its adapter.
_PATIENCE_SECONDS = 30.0
_RETRY_SECONDS = 0.05
A = TypeVar("A")
M = TypeVar("M", bound=Removable)


class AdapterLoads:
    """Loads adapters one at a time. `load` returns False if there is no place now."""

    def __init__(self, load: Callable[[Adapter], Awaitable[bool]]) -> None:
        self._load = load
        self._tasks: dict[Adapter, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()  # held while an adapter is loaded

    async def wait_for(self, adapter: Adapter) -> None:
        """Wait until an adapter is loaded. Raises Unavailable, and as `load`."""
        task = self._tasks.get(adapter)
        if task is None:
            task = self._tasks[adapter] = asyncio.create_task(
                self._load_when_there_is_room(adapter)
            )
            task.add_done_callback(lambda ended: self._forget_task(adapter, ended))
        await asyncio.wait([task])
        if task.cancelled():
            raise Unavailable("the model was unloaded")
        task.result()

    @property
    def is_busy(self) -> bool:
        """Whether a load or `run_between_loads` is under way."""
        return self._lock.locked()

    async def run_between_loads(self, work: Awaitable[A]) -> A:
        """Do work while no adapter is loaded, and return its result."""
        async with self._lock:
            return await work

    def cancel_all(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _load_when_there_is_room(self, adapter: Adapter) -> None:
        give_up_at = clock.now() + _PATIENCE_SECONDS
        async with self._lock:
            while not await self._load(adapter):
                if clock.now() > give_up_at:
                    raise Unavailable(
                        "there was no place for the adapter: those in memory are in use, or "
                        "requests under way need the memory. What helps: a higher "
                        "adapters.max_loaded or adapters.max_bytes",
                        retry_after=1,
                    )
                await asyncio.sleep(_RETRY_SECONDS)

    def _forget_task(self, adapter: Adapter, task: asyncio.Task[None]) -> None:
        del self._tasks[adapter]
        if not task.cancelled():
            task.exception()  # retrieved, since all waiters may have left


async def _free_nothing() -> bool:
    return False


@dataclass(slots=True, eq=False)
class ModelClient(Generic[M]):
    """Loads, asks and unloads one model. `make_way` unloads another; False if none can leave."""

    engine: AsyncEngine
    on_failure: Callable[[str], None] = lambda problem: None
    make_way: Callable[[], Awaitable[bool]] = _free_nothing
    weight_bytes: int = field(default=0, init=False)
    _id: ModelId | None = field(default=None, init=False)
    _state: EngineState = field(default=EngineState.STARTING, init=False)
    _problem: str = field(default="the model is still being loaded", init=False)

    async def load(self, work: Work[M], name: str = "") -> None:
        """Load the model in slices. Raises what `work` raises."""
        try:
            self._id = await self.engine.load(work, self._note_failure, name)
        finally:
            if self._id is None:
                self._state, self._problem = EngineState.FAILED, str(sys.exception())
        self._state, self._problem = EngineState.READY, ""
        self.weight_bytes = await self.ask(lambda model: model.weight_bytes)

    async def unload(self, seconds: float = 0.0) -> None:
        """Unload the model, after writes to the cold tier of at most `seconds`."""
        id, self._id = self._id, None
        self._state, self._problem = EngineState.STOPPED, "the model was unloaded"
        if id is not None:
            await self.engine.unload(id, seconds)

    @property
    def status(self) -> Status:
        """The model's status; only its state if it does not generate."""
        status = None if self._id is None else self.engine.status(self._id)
        if status is not None and self._state is EngineState.READY:
            return status
        return Status(self._state, Occupied(0, 0, 0), clock.now(), self._problem)

    def _note_failure(self, problem: str) -> None:
        self._state, self._problem = EngineState.FAILED, problem
        self.on_failure(problem)

    async def ask(self, question: Callable[[M], A]) -> A:
        """Run a short function between two steps. Raises Unavailable, or what `question` raises."""
        return await self.engine.ask(self._loaded_id(), question)

    async def work(self, make: Callable[[M], Work[A]]) -> A:
        """Run a job in slices between steps. Raises QueueFull, Unavailable, and NoMemory."""
        while True:
            id = self._loaded_id()
            try:
                return cast(A, await self.engine.run_job(id, make))
            except NoMemory as error:
                if not (error.fits_without_others and await self.make_way()):
                    raise

    def _loaded_id(self) -> ModelId:
        if self._id is None or self._state is not EngineState.READY:
            raise Unavailable(self._problem)
        return self._id


@dataclass(slots=True, eq=False)
class GeneratorClient(ModelClient[ModelInstance]):
    """The client of a model that generates."""

    _adapter_loads: AdapterLoads = field(init=False)

    def __post_init__(self) -> None:
        self._adapter_loads = AdapterLoads(
            lambda adapter: self.work(lambda instance: model_jobs.load_adapter(instance, adapter))
        )

    async def unload(self, seconds: float = 0.0) -> None:
        self._adapter_loads.cancel_all()
        await ModelClient.unload(self, seconds)

    def preparing(self) -> AbstractContextManager[None]:
        return self.engine.preparing()

    async def submit(self, request: Request) -> Generation:
        """Queue a request, and wait until it is accepted. Raises as `work`, and AdapterUnusable."""
        async with self.keeping_adapter(request.adapter):
            while True:
                try:
                    return await self._submit(request)
                except NoMemory:
                    unloading = self.work(model_jobs.unload_idle_adapters)
                    if await self._adapter_loads.run_between_loads(unloading):
                        continue
                    # Unloading other models helps only a request that fits without them.
                    fits = await self.ask(lambda instance: instance.fits_without_others(request))
                    if not (fits and await self.make_way()):
                        raise

    async def unload_idle_adapters(self) -> bool:
        """Unload idle adapters. Waits for no load of an adapter, which may wait for this call."""
        if self._adapter_loads.is_busy:
            return False
        with suppress(NotNow):
            job = self.engine.run_job(self._loaded_id(), model_jobs.unload_idle_adapters)
            return cast(bool, await self._adapter_loads.run_between_loads(job))
        return False

    @asynccontextmanager
    async def _while_held(
        self, enter: Callable[[ModelInstance], AbstractContextManager[object]]
    ) -> AsyncIterator[None]:
        """Enter and leave a context on the mlx thread."""
        held_contexts = ExitStack()
        try:
            await self.ask(lambda instance: held_contexts.enter_context(enter(instance)))
            yield
        finally:
            with suppress(Unavailable):  # the thread has ended
                self.engine.put(EngineCall(held_contexts.close, Future()))

    @asynccontextmanager
    async def keeping_adapter(self, adapter: Adapter | None) -> AsyncIterator[None]:
        """Keep an adapter loaded. Raises as `work` and `AdapterLoads.wait_for`."""
        if adapter is None:
            yield
            return
        async with self._while_held(lambda instance: instance.adapters.expecting(adapter)):
            if not await self.ask(lambda instance: instance.adapters.weights.touch(adapter)):
                await self._adapter_loads.wait_for(adapter)
            yield

    async def _submit(self, request: Request) -> Generation:
        id = self._loaded_id()
        generation = Generation(self.engine, id, request)
        self.engine.route_events(request.id, generation.mailbox, request.n)
        with ExitStack() as undo:
            undo.callback(generation.close)
            self.engine.put(Submit(id, request))
            await generation.wait_until_accepted()
            undo.pop_all()
        return generation

    # -- the prefix cache ----------------------------------------------------------------

    async def probe(self, tokens: tuple[int, ...], salt: bytes) -> PromptReport:
        """Report what both tiers have of a prompt. Raises as `ask`."""
        return await self.ask(lambda instance: instance.cache.probe(tokens, salt))

    async def pin(self, tokens: tuple[int, ...], salt: bytes, model: str) -> Pin | None:
        """Raises as `ask`."""
        return await self.ask(lambda instance: instance.pin(tokens, salt, model))

    async def standings(self) -> list[Standing]:
        return await self.ask(lambda instance: list(instance.scheduler.standings.glance()))

    async def score(
        self, tokens: Sequence[int], top: int, adapter: Adapter | None = None
    ) -> list[Logprobs]:
        async with self.keeping_adapter(adapter):
            return await self.work(lambda instance: score_prompt(instance, tokens, top, adapter))

    # -- images --------------------------------------------------------------------------

    async def images_to_compute(
        self, tokens: tuple[int, ...], salt: bytes, images: Sequence[ImageSpan]
    ) -> tuple[ImageSpan, ...]:
        """Raises as `ask`, and as `model_jobs.images_to_compute`."""
        return await self.ask(
            lambda instance: model_jobs.images_to_compute(instance, tokens, salt, images)
        )

    def keeping_images(self, images: Sequence[ImageSpan]) -> AbstractAsyncContextManager[None]:
        """Keep features of images, unless memory is short. Raises as `ask`."""
        digests = [image.digest for image in images]
        return self._while_held(lambda instance: instance.features.expecting(digests))

    async def compute_image(self, image: ImageSpan, pixels: Floats) -> None:
        """Compute and keep features, outside `setting_aside`. Raises as `work`."""
        await self.work(lambda instance: model_jobs.compute_image(instance, image, pixels))

    @asynccontextmanager
    async def setting_aside(self, nbytes: int) -> AsyncIterator[None]:
        """Set memory aside for work on another thread. Raises as `work`."""
        reserved = model_jobs.ReservedBytes(nbytes)
        try:
            await self.work(reserved.claim)
            yield
        finally:
            with suppress(Unavailable):  # the thread has ended, and its account with it
                self.engine.put(EngineCall(reserved.release, Future()))
