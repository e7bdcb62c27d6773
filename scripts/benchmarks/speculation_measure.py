"""Answers with drafts and without, by turns on one engine: output tokens per second while they are
decoded."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from omlx_server.core.request import Request, RequestId, TokenEvent
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.speculation.methods import Mode
from omlx_server.core.speculation.ngram import NgramLookup
from omlx_server.engine.messages import Outbound
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.step_loop import StepLoop
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, collect, find
from scripts.benchmarks.progress import Steps
from scripts.benchmarks.speculation_plan import WITH, WITHOUT
from scripts.benchmarks.speculation_texts import Task

_BOUNDS = {"edit_1": 1.8, "edit_4": 1.3, "json_1": 1.3, "prose_1": 0.97, "prose_8": 0.97}
_FORETOLD = {"right": 1.0, "wrong": 0.97}
_DRAFTED = {"draft_1": 1.0, "draft_8": 0.97, "draft_1_wrong": 0.97}

Answers = dict[str, list[int]]


class Foretold(NgramLookup):
    """A look-up that knows an answer, or one that is wrong in every token."""

    def __init__(self, prompt: int, answer: Sequence[int]) -> None:
        self._known = self._first = prompt
        self._answer = answer
        super().__init__(())

    def __len__(self) -> int:
        return self._known

    def draft(self, count: int) -> tuple[int, ...]:
        at = self._known - self._first
        return tuple(self._answer[at : at + count])

    def take(self, tokens: Iterable[int]) -> tuple[int, int]:
        new = list(tokens)
        expected = self.draft(len(new))
        self._known += len(new)
        return sum(a == b for a, b in zip(expected, new, strict=False)), len(expected)


class Rounds(Protocol):
    """Something that measures each of its tasks once in a round."""

    def round(self) -> list[Sample]: ...


class SpeculationBench:
    """One engine that answers tasks with drafts and without."""

    def __init__(
        self,
        instance: ModelInstance,
        limits: SchedulerLimits,
        tasks: Sequence[Task],
        mode: Mode = "auto",
    ) -> None:
        """`mode`: how tokens are drafted."""
        self._instance = instance
        self._limits = limits
        self._tasks = tasks
        self._mode: Mode = mode
        self._runs = 0

    def round(self) -> list[Sample]:
        """Each task once with drafts and once without."""
        return [sample for task in self._tasks for sample in self._task(task)]

    def _task(self, task: Task) -> Iterator[Sample]:
        """Raises RuntimeError where an answer is not the same with drafts."""
        spec = Spec(task.name, task.title, "tok/s", Better.HIGHER)
        without, plain = self._rate(task, "off")
        yield Sample(spec, WITHOUT, without)
        drafted, answers = self._rate(task, self._mode)
        if answers != plain:
            raise RuntimeError(f"{task.title}: the answers differ")
        yield Sample(spec, WITH, drafted)
        if task.name == "prose_1":
            [answer] = plain.values()
            for kind, foretold in (("right", answer), ("wrong", [token + 1 for token in answer])):
                title = f"{task.title}, drafts that are all {kind}"
                spec = Spec(f"{task.name}_{kind}", title, "tok/s", Better.HIGHER)
                yield Sample(spec, WITHOUT, without)
                yield Sample(spec, WITH, self._rate(task, "ngram", foretold)[0])

    def _rate(
        self, task: Task, mode: Mode, foretold: Sequence[int] | None = None
    ) -> tuple[float, Answers]:
        """Tokens per second from when all answers have begun, and the answers by stream."""
        instance, answers, self._runs = self._instance, Answers(), self._runs + 1
        instance.change_limits(replace(self._limits, speculation=mode), write_through=False)
        loop = StepLoop(instance, lambda events: _note(events, answers))
        for stream in range(task.streams):
            loop.admit(self._request(task, stream))
        running = instance.scheduler.queues.running
        while len(running) < task.streams:
            loop.turn(is_only_model=True)
        for row in running.values() if foretold else ():
            row.lookup = Foretold(len(task.tokens), foretold or ())
        before, begun = _count(answers), time.perf_counter()
        while loop.has_work:
            loop.turn(is_only_model=True)
        return (_count(answers) - before) / (time.perf_counter() - begun), answers

    def _request(self, task: Task, stream: int) -> Request:
        sampling = replace(task.sampling, seed=stream)
        name = RequestId(f"{stream} of {self._runs}")
        return Request(name, task.tokens, sampling, constraint=task.constraint)


def measured(benches: Sequence[Rounds], repeats: int, steps: Steps) -> list[Metric]:
    """So many rounds of all benches."""
    rounds: list[list[Sample]] = []
    for number in range(repeats):
        steps.begin(f"round {number + 1}")
        rounds.append([sample for bench in benches for sample in bench.round()])
        steps.done("done")
    return collect(rounds)


def requirements(metrics: Sequence[Metric]) -> list[Requirement]:
    """How many times as fast answers have to come as without drafts."""
    foretold = {f"prose_1_{kind}": bound for kind, bound in _FORETOLD.items()}
    bounds = {**_BOUNDS, **foretold, **_DRAFTED}
    found = []
    for name, bound in bounds.items():
        metric = find(metrics, name)
        title = metric.spec.title if metric else name
        ratio = metric.ratio(WITH, WITHOUT) if metric else None
        found.append(Requirement(title, ratio, bound, Better.HIGHER))
    return found


def _note(events: Sequence[Outbound], answers: Answers) -> None:
    for event in events:
        if isinstance(event, TokenEvent) and event.token is not None:
            stream = event.request_id.partition(" ")[0]
            answers.setdefault(stream, []).append(event.token)


def _count(answers: Answers) -> int:
    return sum(map(len, answers.values()))
