"""Asks a model instance for answers as the engine's thread does, without HTTP and text."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from omlx_server.core.request import (
    Admitted,
    FinishReason,
    Miss,
    Rejected,
    Request,
    RequestId,
    SamplingParams,
    TokenEvent,
)
from omlx_server.engine.messages import Outbound
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.step_loop import StepLoop
from omlx_server.errors import OmlxError

_REST_SECONDS = 0.0005
_PATIENCE_SECONDS = 180.0
_ANSWERS = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class TestPrompt:
    """A prompt, and the number of tokens of its answer. Prompts of different `salt` share no cached
    prefix."""

    tokens: tuple[int, ...]
    length: int
    salt: bytes
    drafts: bool = True


@dataclass(slots=True)
class GreedyAnswer:
    """A greedy answer. `begun` and `times`, of its tokens, are time.perf_counter() seconds. The
    first `cached` tokens of the prompt came from the prefix cache."""

    begun: float
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    cached: int = 0
    miss: Miss = Miss.NONE
    problem: str = ""


class Session:
    """Runs one instance on this thread, which must have loaded the model."""

    def __init__(self, instance: ModelInstance) -> None:
        self.instance = instance
        self._loop = StepLoop(instance, self._take)
        self._numbers = count()
        self._answers: dict[RequestId, GreedyAnswer] = {}
        self._heard = 0.0

    def salt(self) -> bytes:
        return f"self-test {next(self._numbers)}".encode()

    def ask(
        self, questions: Sequence[TestPrompt], late: Sequence[TestPrompt] = ()
    ) -> list[GreedyAnswer]:
        """Return the answers to all questions, computed together. The `late` ones come when all
        others have begun to answer. Raises OmlxError if nothing comes for three minutes."""
        ids = [self._admit(question) for question in questions]
        first = [self._answers[id] for id in ids]
        waiting = list(late)
        self._heard = time.monotonic()
        while self._loop.has_work or waiting:
            if waiting and all(answer.tokens or answer.problem for answer in first):
                ids += [self._admit(question) for question in waiting]
                waiting = []
            self._turn()
        return [self._answers.pop(id) for id in ids]

    def alone(self, question: TestPrompt) -> GreedyAnswer:
        return self.ask([question])[0]

    def evict_all(self) -> None:
        """Evict every block from memory, and wait for the cold tier. Raises OmlxError after three
        minutes."""
        instance = self.instance
        instance.cache.eviction.make_room(instance.cache.index.nbytes, 0)
        instance.drop_evicted(wholly=True)
        cold, end = instance.tiers.cold, time.monotonic() + _PATIENCE_SECONDS
        while cold is not None and cold.report().queued:
            if time.monotonic() > end:
                raise OmlxError("the cold tier writes nothing", hint="is the disk full, or slow?")
            time.sleep(_REST_SECONDS)
            instance.recall()

    def _turn(self) -> None:
        self._loop.turn(is_only_model=True)
        if self._loop.is_at_rest and self._loop.has_work:  # a prompt waits for the cold tier
            time.sleep(_REST_SECONDS)
            self._loop.ask_for_turn()
        if time.monotonic() - self._heard > _PATIENCE_SECONDS:
            raise OmlxError(
                f"the model has computed nothing for {_PATIENCE_SECONDS:.0f} seconds",
                hint="is something else using the machine? --quick asks for less",
            )

    def _admit(self, question: TestPrompt) -> RequestId:
        id = RequestId(f"self-test-{next(self._numbers)}")
        self._answers[id] = GreedyAnswer(time.perf_counter())
        sampling = SamplingParams(max_tokens=question.length, temperature=0)
        self._loop.admit(
            Request(
                id,
                question.tokens,
                sampling,
                arrived=time.monotonic(),
                salt=question.salt,
                speculation=None if question.drafts else "off",
            )
        )
        return id

    def _take(self, events: Sequence[Outbound]) -> None:
        self._heard = time.monotonic()
        for event in events:
            match event:
                case TokenEvent():
                    self._token(event)
                case Admitted(request_id=id, cached=cached, miss=miss):
                    self._answers[id].cached, self._answers[id].miss = cached, miss
                case Rejected(request_id=id, no_room=no_room):
                    self._answers[id].problem = no_room or "it was refused: the queue is full"

    def _token(self, event: TokenEvent) -> None:
        answer = self._answers[event.request_id]
        if event.token is not None:
            answer.tokens.append(event.token)
            answer.times.append(time.perf_counter())
        if event.finish is not None and event.finish not in _ANSWERS:
            answer.problem = event.error or f"it ended: {event.finish.value}"
