"""Random requests of every kind, on an instance driven by hand."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.request import TokenEvent
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.compute.drive import Drive, sampling
from tests.compute.templates import Template, form
from tests.compute.warm_runs import tokens
from tests.tiny_models import VOCAB

BLOCK = 16


class Told(Drive):
    """Notes the log-probabilities of all tokens."""

    def __init__(self, loaded: LoadedModel, *args: Any, **options: Any) -> None:
        super().__init__(loaded, *args, **options)
        self.logprobs: dict[str, list[Any]] = {}

    def seen(self, event: TokenEvent) -> None:
        if event.logprobs is not None:
            name = f"{event.request_id}/{event.index}"
            self.logprobs.setdefault(name, []).append((event.token, event.logprobs))


def prompt_of(rng: random.Random) -> list[int]:
    """Text that repeats itself, and sometimes the beginning of another prompt."""
    seed = rng.randrange(3)
    piece = tokens(f"piece {seed}", rng.choice((3, 7, 12)))
    return [*tokens(f"head {seed}", rng.choice((5, 20, 40))), *piece * rng.choice((1, 2, 4))]


def params_of(rng: random.Random) -> dict[str, Any]:
    """Of one of many kinds of requests."""
    changes: dict[str, Any] = {
        "temperature": rng.choice((0, 0, 0.3, 1.0)),
        "seed": rng.randrange(9),
    }
    if rng.random() < 0.3:
        changes["repetition_penalty"] = rng.choice((0.5, 1.3))
        changes["frequency_penalty"] = rng.choice((-0.5, 0.0, 0.4))
    if rng.random() < 0.3:
        changes["logit_bias"] = tuple((rng.randrange(VOCAB), 4.0) for _ in range(3))
    if rng.random() < 0.3:
        changes["top_logprobs"] = rng.choice((0, 3))
    if rng.random() < 0.3:
        changes["stop_ids"] = frozenset(rng.sample(range(VOCAB), 4))
        changes["min_tokens"] = rng.choice((0, 9))
    if rng.random() < 0.3:
        changes |= {"top_k": rng.choice((0, 4)), "top_p": 0.9, "min_p": rng.choice((0, 0.05))}
    return changes


def requests(rng: random.Random, count: int) -> Iterator[tuple[str, list[int], dict[str, Any]]]:
    for number in range(count):
        params = sampling(rng.choice((1, 2, 9, 30)), **params_of(rng))
        more: dict[str, Any] = {"n": rng.choice((1, 1, 1, 3))}
        if rng.random() < 0.3:
            more["constraint"] = Template(form(number))
            params = replace(params, stop_ids=frozenset(), logit_bias=())
        yield f"r{number}", prompt_of(rng), {"params": params, **more}


def run(loaded: LoadedModel, seed: int, limits: SchedulerLimits, **options: Any) -> Told:
    """Nine requests at random times, with strangers that join, leave and are cancelled, rows that
    are preempted, and evictions."""
    rng, trouble = random.Random(seed), random.Random(seed)
    asked = list(requests(rng, 9))
    drive = Told(loaded, limits, BLOCK, **options)
    for name, prompt, request in asked:
        drive.add(name, prompt, **request)
        stranger = f"s{name}"
        if rng.random() < 0.5:
            drive.add(stranger, prompt_of(rng), sampling(rng.choice((3, 40))))
        for _ in range(rng.choice((0, 1, 5, 20))):
            drive.step()
        if rng.random() < 0.3:
            drive.cancel(stranger)
        if rng.random() < 0.1:
            drive.lose()
        if trouble.random() < 0.3:
            drive.preempt(trouble)
        if trouble.random() < 0.2:
            drive.evict()
    drive.finish()
    return drive
