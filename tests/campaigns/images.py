"""Images over HTTP: `scripts/campaign images`. A tiny random vision model by default.

1. Requests with wrong images get a clear 400, at once; the memory stays flat, and after each the
   server answers a text as before.
2. A conversation of ten turns about two images computes the new tokens of each turn only, and says
   the same when nothing is cached.
3. The official packages send an image in each form; streams, tools and JSON schemas work beside it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.api.harness import Json, ServerProcess, cached, serving, text_of
from tests.api.stories import metrics
from tests.campaigns.image_packages import package_problems
from tests.campaigns.image_requests import (
    ImageRequest,
    chat,
    chat_image,
    data_url,
    wrong_requests,
)
from tests.images.files import encoded, noise

MOST_SECONDS = 1.0
MOST_GROWN = 32_000_000
_TURNS, _WITH_IMAGE = 10, (0, 4)
_COMPUTED = "omlx_images_computed_total"
_MOST_MESSAGE = 300
_REFUSED = (400, 413, 422)


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the conversation, in tokens; `computed`: how many images, or tiles of them, the
    tower has computed for it."""

    prompt: int
    cached: int
    answer: int
    computed: int


@dataclass(slots=True)
class Outcome:
    """`statuses` of wrong requests. `slowest`: the name and the seconds of the one that took the
    longest of the server's processors. `grown`: bytes of resident memory after all of them were
    sent a second time, above those after the first. `problems`: what is not as it should be."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest: tuple[str, float] = ("", 0.0)
    grown: int = 0
    turns: list[Turn] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return not self.problems and bool(self.statuses) and len(self.turns) == _TURNS

    def __str__(self) -> str:
        statuses = ", ".join(f"{n} x {status}" for status, n in sorted(self.statuses.items()))
        turns = ", ".join(f"{turn.prompt - turn.cached} of {turn.prompt}" for turn in self.turns)
        name, seconds = self.slowest
        return (
            f"{statuses}; slowest {name!r}, {seconds:.2f} s; memory grew by "
            f"{self.grown / 1e6:.0f} MB; computed tokens of each turn: {turns}; "
            f"{len(self.problems)} problems"
        )


def campaign(
    model: str,
    settings: Sequence[str],
    directory: Path,
    *,
    every: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Of the wrong requests, one of `every` so many is sent."""
    outcome = Outcome()
    with serving(model, directory, *settings) as server:
        _send_wrong(server, list(wrong_requests(server.model))[::every], outcome, say)
        _converse(server, outcome, say)
        for problem in package_problems(server):
            outcome.problems.append(problem)
            say(problem)
    return outcome


# --- Wrong images ---------------------------------------------------------------------------------


def _send_wrong(
    server: ServerProcess,
    requests: Sequence[ImageRequest],
    outcome: Outcome,
    say: Callable[[str], None],
) -> None:
    right = server.canary()
    for request in requests:
        status, seconds, text = _sent(server, request)
        outcome.statuses[status] += 1
        outcome.problems += _problems(request, status, seconds, text)
        outcome.slowest = max(outcome.slowest, (request.name, seconds), key=lambda one: one[1])
        if server.canary() != right:
            outcome.problems.append(f"after {request.name}: the server answers otherwise")
        say(f"{request.name}: {status} in {seconds:.2f} s: {text[:120]}")
    settled = server.memory
    for request in requests:
        _sent(server, request)
    outcome.grown = server.memory - settled
    if outcome.grown > MOST_GROWN:
        outcome.problems.append(f"memory grew by {outcome.grown / 1e6:.0f} MB")


def _sent(server: ServerProcess, request: ImageRequest) -> tuple[int, float, str]:
    """The status, the seconds that it took of the server's processors, and the message of an error;
    empty for an answer, the whole body where there is no message."""
    body, spent = request.body(), server.cpu
    response = server.http.post(f"{server.url}{request.path}", json=body)
    seconds = server.cpu - spent
    if response.status_code == 200:
        return 200, seconds, ""
    error = response.json().get("error", {})
    return response.status_code, seconds, str(error.get("message") or response.text)


def _problems(request: ImageRequest, status: int, seconds: float, text: str) -> Iterator[str]:
    if request.may_pass and status == 200:
        return
    if status not in _REFUSED:
        yield f"{request.name} to {request.path}: {status} {text[:200]}"
    elif not text or "\n" in text or len(text) > _MOST_MESSAGE:
        yield f"{request.name}: its message is not clear: {text[:400]!r}"
    if seconds > MOST_SECONDS:
        yield f"{request.name}: it took {seconds:.1f} s"


# --- A conversation -------------------------------------------------------------------------------


def _converse(server: ServerProcess, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Two images, each shown once and sent again with every turn that follows."""
    messages: list[Json] = []
    text = ""
    for number in range(_TURNS):
        messages.append({"role": "user", "content": _content(number)})
        before = metrics(server).get(_COMPUTED, 0)
        answer = _answered(server, messages)
        computed = int(metrics(server)[_COMPUTED] - before)
        text, usage = text_of(answer), answer["usage"]
        turn = Turn(usage["prompt_tokens"], cached(answer), usage["completion_tokens"], computed)
        outcome.problems += _of_turn(number, turn, outcome.turns)
        outcome.turns.append(turn)
        say(f"turn {number + 1}: {turn}")
        messages.append({"role": "assistant", "content": text})
    server.http.post(f"{server.url}/v1/cache/reset", json={})
    cold = _answered(server, messages[:-1])
    if cached(cold) or text_of(cold) != text:
        outcome.problems.append(
            f"with {cached(cold)} tokens cached the last answer is {text_of(cold)!r}, not {text!r}"
        )


def _content(number: int) -> Any:
    text = {"type": "text", "text": f"Question {number + 1}: what changes?"}
    if number not in _WITH_IMAGE:
        return [text]
    image = encoded(noise(48, 64, seed=number), "PNG")
    return [chat_image({"url": data_url(image)}), text]


def _answered(server: ServerProcess, messages: Sequence[Json]) -> Json:
    body = chat(server.model, "", max_tokens=12, ignore_eos=True) | {"messages": list(messages)}
    response = server.post(body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def _of_turn(number: int, turn: Turn, before: Sequence[Turn]) -> Iterator[str]:
    """All of the prompt of the turn before but its last token comes from the cache, and no image is
    computed but a new one."""
    known = before[-1].prompt - 1 if before else 0
    if turn.cached < known:
        yield f"turn {number + 1} has {turn.cached} tokens cached, and {known} were known"
    if bool(turn.computed) != (number in _WITH_IMAGE):
        yield f"in turn {number + 1} the tower has computed {turn.computed} images"
