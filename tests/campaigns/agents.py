"""The coding agents themselves, from npm and PyPI, started by `launch` against the real server:
`scripts/campaign agents`.

Each has two turns of one conversation in a home and a directory of its own. In a turn the model
calls a tool (in aider, edits a file), and only with what the tool gave does it answer. The second
turn must come from the prefix cache, and the agent must tell the context that the server has. The
model says a text that is fixed (tests/scripted_models.py); all else is real.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.api.harness import REPO, UNPROBED, ServerProcess, samples, serving
from tests.campaigns.agent_programs import AGENTS, NOTE, Agent, environment
from tests.scripted_models import save_scripted

CONTEXT = 49_152
"""Tokens of the context of the models: no agent takes this by itself."""

_TURN_SECONDS = 600.0  # a talk has long prompts, and machines are busy
_LONGEST_PROBLEM = 600

Say = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """How many turns there were, and what is not as it should be."""

    turns: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.turns} turns, {len(self.problems)} problems"


@dataclass(frozen=True, slots=True)
class Counts:
    """What the server has counted: prompt tokens, those of them from the cache, answers to requests
    of agents, and how many of these were refused."""

    prompt: float
    cached: float
    answers: float
    refused: float

    def __sub__(self, earlier: "Counts") -> "Counts":
        return Counts(
            self.prompt - earlier.prompt,
            self.cached - earlier.cached,
            self.answers - earlier.answers,
            self.refused - earlier.refused,
        )


def campaign(directory: Path, agents: Iterable[Agent] = AGENTS.values(), *, say: Say) -> Outcome:
    """Run two turns of each agent, which must be installed; each turn is told in a line."""
    outcome = Outcome()
    contexts = dict.fromkeys(agents, CONTEXT)
    with prepared(directory, contexts) as server:
        for agent in contexts:
            _try(agent, directory / agent.name, server, outcome, say)
    return outcome


@contextmanager
def prepared(directory: Path, contexts: Mapping[Agent, int]) -> Iterator[ServerProcess]:
    """A server with a model for each agent, whose context holds so many tokens. Each agent has
    `home` and `work` in a directory of its name, and the note in `work`."""
    for agent, context in contexts.items():
        place = directory / agent.name
        (place / "home").mkdir(parents=True)
        (place / "work").mkdir()
        note = place / "work" / "note.txt"
        note.write_text(NOTE, encoding="utf-8")
        save_scripted(
            directory / "models" / _model(agent),
            call=agent.call(note) if agent.call else "",
            answer=agent.answer,
            expected=agent.expected,
            context=context,
        )
    sets = (f"models.dirs={directory / 'models'}", UNPROBED)
    with serving(_model(next(iter(contexts))), directory / "server", *sets) as server:
        yield server


def _model(agent: Agent) -> str:
    return f"for-{agent.name}"


def _try(agent: Agent, place: Path, server: ServerProcess, outcome: Outcome, say: Say) -> None:
    for number, arguments in enumerate(agent.turns, start=1):
        before = counted(server)
        code, said, errors = launched(agent, arguments, place, server)
        counts = counted(server) - before
        share = counts.cached / max(counts.prompt, 1)
        outcome.turns += 1
        say(
            f"{agent.name} {agent.version}, turn {number}: {counts.answers:.0f} answers, "
            f"{counts.prompt:.0f} prompt tokens, {share:.1%} of them from the cache"
        )
        for problem in problems_of(agent, place, code, said, counts):
            outcome.problems.append(f"{agent.name}, turn {number}: {problem}\n{said}{errors}")
        if number == 2 and share < agent.least_cached:
            outcome.problems.append(f"{agent.name}: only {share:.1%} came from the cache")
    if agent.asks:
        _, said, _ = launched(agent, agent.asks, place, server)
    told = agent.context(place / "home", said)
    say(f"{agent.name}: it reckons with {told} tokens of context")
    if abs(told - CONTEXT) > 1:  # of codex a rounded share
        outcome.problems.append(f"{agent.name}: it reckons with {told} tokens, not {CONTEXT}")


def problems_of(agent: Agent, place: Path, code: int, said: str, counts: Counts) -> Iterable[str]:
    if code:
        yield f"it ended with code {code}"
    if counts.refused:
        yield f"{counts.refused:.0f} of its requests were refused"
    if agent.call and agent.answer not in said:
        yield "it did not show the answer, which the model gives to what the tool gave"
    if agent.call and counts.answers < 2:
        yield "there was no second request with what the tool gave"
    note = (place / "work" / "note.txt").read_text(encoding="utf-8")
    if not agent.call and agent.expected not in note:
        yield "it did not write what the model said into the file"


def launched(
    agent: Agent, arguments: Iterable[str], place: Path, server: ServerProcess
) -> tuple[int, str, str]:
    """The exit code of an agent that `launch` starts, and what it wrote to stdout and stderr."""
    launch = (sys.executable, "-m", "omlx_server", "launch", agent.launches, "--url", server.url)
    with subprocess.Popen(
        [*launch, "--model", _model(agent), "--", *arguments],
        cwd=place / "work",
        env={**environment(agent, place / "home"), "PYTHONPATH": str(REPO)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, errors = process.communicate(timeout=_TURN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, errors = process.communicate()
        return process.returncode, said[-_LONGEST_PROBLEM * 20 :], errors[-_LONGEST_PROBLEM:]


def counted(server: ServerProcess) -> Counts:
    found = samples(server.http.get(f"{server.url}/metrics").text)
    posts = {
        name: value
        for name, value in found.items()
        if name.startswith("omlx_http_requests_total") and 'method="POST",route="/v1/' in name
    }
    return Counts(
        prompt=found["vllm:prefix_cache_queries_total"],
        cached=found["vllm:prefix_cache_hits_total"],
        answers=sum(posts.values()),
        refused=sum(value for name, value in posts.items() if 'status="200"' not in name),
    )
