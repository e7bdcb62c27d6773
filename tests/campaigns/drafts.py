"""Random requests of every kind, each twice: alone and without drafts, then beside others with all
that drafts. Both answers must be the same.

A step over several tokens may round otherwise than one over a single token. Where an answer differs
it is looked at: if the two tokens at the first difference are equally likely, it is a tie, and is
counted apart.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.api.harness import CHAT, Json, ServerProcess, serving
from tests.campaigns.traffic import opening

AT_ONCE = 6
_TIE = 1e-4
_MODES = ("auto", "auto", "ngram", "draft")
_WORDS = "river stone winter garden letter silver window market bridge doctor summer".split()  # noqa: SIM905
_SCHEMA: Json = {
    "type": "object",
    "properties": {"name": {"enum": ["river", "garden"]}, "rooms": {"type": "integer"}},
    "required": ["name", "rooms"],
    "additionalProperties": False,
}
_TOOL: Json = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks a house up.", "parameters": _SCHEMA},
}
_FORM = {"type": "json_schema", "json_schema": {"name": "house", "schema": _SCHEMA}}
# What an answer must look like. Half are free.
_FORMS: tuple[Json, ...] = (
    *[{}] * 5,
    {"response_format": _FORM},
    {"guided_regex": "[a-z]{3,9}( [a-z]{3,9}){2,6}"},
    {"tools": [_TOOL]},
    {"tools": [_TOOL], "tool_choice": "required"},
)


@dataclass(slots=True)
class Outcome:
    """Answers that were the `same`, and those that were not: `ties`, or `wrong`, in a line each.
    `drafted` and `accepted` count tokens by method."""

    same: int = 0
    ties: int = 0
    wrong: list[str] = field(default_factory=list)
    drafted: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        return not self.wrong and sum(self.accepted.values()) > 0

    def __str__(self) -> str:
        drafted = ", ".join(
            f"{method} {self.accepted[method]} of {count}"
            for method, count in self.drafted.items()
            if count
        )
        head = f"{self.same} the same, {self.ties} ties, {len(self.wrong)} wrong; right: {drafted}"
        return "\n".join([head, *self.wrong[:5]])


def campaign(
    model: str,
    server_settings: list[str],
    directory: Path,
    count: int,
    *,
    seed: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """`count` requests."""
    outcome = Outcome()
    with (
        serving(model, directory, "cache.hot_cache_only=true", *server_settings) as server,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        asked = [_request(server, random.Random(seed + number)) for number in range(count)]
        right = []
        for body in asked:
            right.append(_ask(server, body, "off"))
            if len(right) % 50 == 0:
                say(f"{len(right)} asked alone")
        jobs = [pool.submit(_again, server, body, seed + n) for n, body in enumerate(asked)]
        for body, expected, job in zip(asked, right, jobs, strict=True):
            _judge(server, body, expected, job.result(), outcome)
        _count(server, outcome)
    return outcome


def _request(server: ServerProcess, dice: random.Random) -> Json:
    """A prompt that repeats itself, of which the beginning may be that of others."""
    piece = " ".join(dice.choices(_WORDS, k=dice.randint(3, 12)))
    said = f"Say this again: {piece}. " * dice.choice((1, 2, 5))
    messages = [{"role": "user", "content": said}]
    if dice.random() < 0.6:
        messages.insert(0, {"role": "system", "content": opening(dice)})
    temperature = dice.choice((0, 0, 0.7, 1.0))
    body = {
        "model": server.model,
        "messages": messages,
        "temperature": temperature,
        "seed": dice.randrange(100),
        "max_tokens": dice.choice((1, 2, 17, 40, 70)),
        "n": dice.choice((1, 1, 1, 3)),
        **dice.choice(_FORMS),
    }
    if dice.random() < 0.3:
        body |= {"repetition_penalty": dice.choice((0.8, 1.2)), "presence_penalty": 0.3}
    if dice.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": dice.choice((0, 3))}
    if dice.random() < 0.3:
        body["stop"] = dice.sample(_WORDS, 2)
    if dice.random() < 0.3:
        body["ignore_eos"] = True
    return body


def _again(server: ServerProcess, body: Json, seed: int) -> Json:
    """The same beside others, some of which leave."""
    dice = random.Random(seed)
    if dice.random() < 0.4:
        _stranger(server, dice)
    return _ask(server, body, dice.choice(_MODES))


def _stranger(server: ServerProcess, dice: random.Random) -> None:
    """A stream that its client leaves after a few tokens."""
    body = _request(server, dice) | {"stream": True}
    stream = server.http.stream("POST", f"{server.url}{CHAT}", json=body)
    with suppress(httpx.HTTPError), stream as response:
        for _ in zip(range(dice.randint(1, 8)), response.iter_raw(), strict=False):
            pass


def _ask(server: ServerProcess, body: Json, mode: str) -> Json:
    response = server.post(body | {"speculation": mode})
    assert response.status_code == 200, f"{body}: {response.text}"
    answer: Json = response.json()
    return answer


def _judge(
    server: ServerProcess, body: Json, expected: Json, found: Json, outcome: Outcome
) -> None:
    pairs = enumerate(zip(expected["choices"], found["choices"], strict=True))
    differing = [index for index, (one, other) in pairs if _told(one) != _told(other)]
    counts = {answer["usage"]["completion_tokens"] for answer in (expected, found)}
    if not differing and len(counts) == 1:
        outcome.same += 1
    elif differing and all(_is_tie(server, body, found, index) for index in differing):
        outcome.ties += 1
    else:
        outcome.wrong.append(f"{body}: {found['choices']!r:.300} not {expected['choices']!r:.300}")


def _told(choice: Json) -> Any:
    """What a choice says, but for ids and for log-probabilities, which are rounded."""
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    content = (choice.get("logprobs") or {}).get("content") or ()
    logprobs = [(entry["token"], round(entry["logprob"], 2)) for entry in content]
    return message.get("content"), calls, choice["finish_reason"], [token for token, _ in logprobs]


def _is_tie(server: ServerProcess, body: Json, found: Json, index: int) -> bool:
    """Whether the answer without drafts had two tokens as likely as each other where that with
    drafts goes on otherwise. Only greedy answers show that."""
    if body["temperature"]:
        return False
    told = {"logprobs": True, "top_logprobs": 2}
    alone, other = (_entries(_ask(server, body | told, mode), index) for mode in ("off", "auto"))
    pairs = ((a, b) for a, b in zip(alone, other, strict=False) if a["token"] != b["token"])
    first = next(pairs, None)
    if first is None:
        return False
    likeliest = [float(entry["logprob"]) for entry in first[0]["top_logprobs"]]
    return likeliest[0] - likeliest[1] <= _TIE


def _entries(answer: Json, index: int) -> list[Json]:
    entries: list[Json] = (answer["choices"][index].get("logprobs") or {}).get("content") or []
    return entries


def _count(server: ServerProcess, outcome: Outcome) -> None:
    for name, found in (("omlx_draft", outcome.drafted), ("omlx_accepted_draft", outcome.accepted)):
        for line in _lines(server, f"{name}_tokens_total{{"):
            method = line.partition('method="')[2].partition('"')[0]
            found[method] = found.get(method, 0) + int(float(line.rpartition(" ")[2]))


def _lines(server: ServerProcess, start: str) -> Iterator[str]:
    text = server.http.get(f"{server.url}/metrics").text
    return (line for line in text.splitlines() if line.startswith(start))
