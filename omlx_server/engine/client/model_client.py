"""One model on the mlx thread, as asyncio sees it. Lives on the event loop's thread."""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Generic, TypeVar, cast

from omlx_server.core.request import Logprobs, Request, RequestId
from omlx_server.core.scheduler.limits import Load as Occupied
from omlx_server.core.work import Work
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.client.generation import Generation
from omlx_server.engine.messages import Ask, Cancel, ModelId, Start, State, Status, Submit
from omlx_server.engine.model_instance import Lane
from omlx_server.engine.scoring import scored
from omlx_server.engine.thread import Resident
from omlx_server.errors import NoMemory, Unavailable

A = TypeVar("A")
M = TypeVar("M", bound=Resident)


async def _nobody_leaves() -> bool:
    return False


class ModelClient(Generic[M]):
    """A model to load, to ask, to unload. `on_failure` is called should it crash again and
    again. `make_way` unloads another model that nobody uses, if there is one."""

    def __init__(
        self,
        engine: AsyncEngine,
        on_failure: Callable[[str], None] = lambda problem: None,
        make_way: Callable[[], Awaitable[bool]] = _nobody_leaves,
    ) -> None:
        self._engine = engine
        self._on_failure = on_failure
        self._make_way = make_way
        self._id: ModelId | None = None
        self._state = State.STARTING
        self._problem = "the model is still being loaded"
        self.weight_bytes = 0

    # -- its life ------------------------------------------------------------------------

    async def load(self, work: Work[M], name: str = "") -> None:
        """Make it, in slices between the steps of others; its `name` is that under which it is
        counted. Raises what the work raises."""
        try:
            self._id = await self._engine.load(work, self._failed, name)
        finally:
            if self._id is None:
                self._state, self._problem = State.FAILED, str(sys.exception())
        self._state, self._problem = State.READY, ""
        self.weight_bytes = await self.ask(lambda model: model.weight_bytes)

    async def unload(self, seconds: float = 0.0) -> None:
        """Give its memory back; the cold tier may take so long to take what it has kept."""
        id, self._id = self._id, None
        self._state, self._problem = State.STOPPED, "the model was unloaded"
        if id is not None:
            await self._engine.unload(id, seconds)

    @property
    def status(self) -> Status:
        """What it is doing. Of one that does not write, that it is there."""
        known = None if self._id is None else self._engine.status(self._id)
        if known is not None and self._state is State.READY:
            return known
        return Status(self._state, Occupied(0, 0, 0), time.monotonic(), self._problem)

    def _failed(self, problem: str) -> None:
        self._state, self._problem = State.FAILED, problem
        self._on_failure(problem)

    # -- questions and jobs --------------------------------------------------------------

    async def ask(self, question: Callable[[M], A]) -> A:
        """Run something small on the mlx thread, between two steps.

        Raises:
            Unavailable: the model is not loaded.
        """
        id = self._ready()
        return cast(A, await self._engine.answered(lambda answer: Ask(id, question, answer)))

    async def work(self, make: Callable[[M], Work[A]]) -> A:
        """Do a job on the mlx thread, in slices between steps. Cancelling ends it within a slice.

        Raises:
            QueueFull: too many jobs are waiting.
            NoMemory: it would not fit even if nobody else were served, and no other model loaded.
            Unavailable: the model is not loaded.
        """
        while True:
            id = self._ready()
            try:
                return cast(A, await self._engine.job(partial(Start, id, make)))
            except NoMemory as error:
                if not (error.fits_without_others and await self._make_way()):
                    raise

    def _ready(self) -> ModelId:
        if self._id is None or self._state is not State.READY:
            raise Unavailable(self._problem)
        return self._id


class LaneClient(ModelClient[Lane]):
    """One that writes."""

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Around the making and submitting of a request, so that an idle engine knows of it."""
        with self._engine.preparing():
            yield

    async def submit(self, request: Request) -> Generation:
        """Queue a request. Its first event is awaited here, so a refusal precedes any answer.

        Raises:
            QueueFull: too many requests are waiting.
            NoMemory: it would not fit even if nobody else were served, and no other model loaded.
            Unavailable: the model is not loaded.
        """
        while True:
            try:
                return await self._submit(request)
            except NoMemory:
                alone = await self.ask(lambda lane: lane.fits_without_others(request))
                if not (alone and await self._make_way()):
                    raise

    async def _submit(self, request: Request) -> Generation:
        id = self._ready()
        generation = Generation(self, request)
        self._engine.follow(request.id, generation.events)
        with ExitStack() as undo:
            undo.callback(generation.close)
            self._engine.put(Submit(id, request))
            await generation.accepted()
            undo.pop_all()
        return generation

    def cancel(self, request_id: RequestId, index: int | None = None) -> None:
        """Stop computing a request, or one of its choices. No event follows."""
        if self._id is not None:
            with suppress(Unavailable):  # then it has ended already
                self._engine.put(Cancel(self._id, request_id, index))

    def forget(self, request_id: RequestId) -> None:
        """Route no more events of this request."""
        self._engine.forget(request_id)

    async def score(self, tokens: Sequence[int], top: int) -> list[Logprobs]:
        """The log-probabilities of a prompt's own tokens but the first, with the `top` likeliest.
        Raises as `work`."""
        return await self.work(lambda lane: scored(lane, tokens, top))
