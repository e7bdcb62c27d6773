"""Talks with the coding agents that are longer than the context: a step of
`scripts/campaign agents`.

In each turn the note is another one, and with it the conversation grows by a sixth of the context.
An agent that knows the size sums the conversation up, or leaves something out, before a request is
too long for the server: none may be refused, and each turn must have its answer.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.api.harness import ServerProcess
from tests.campaigns import agents
from tests.campaigns.agent_programs import AGENTS, NOTE, Agent
from tests.campaigns.agents import Outcome, Say, counted, launched, problems_of

TURNS = 6
_SHARE = 6
"""A note has one part of so many of the context."""
_WORDS = ("a", "and", "as", "for", "in", "is", "it", "of", "on", "that", "the", "to", "with")
"""Each is a token with the space before it, also to agents that count with a vocabulary of their
own; and they are short, since Codex cuts what a tool gives to 10 kB."""
_LINE = 60  # words


def campaign(directory: Path, chosen: Iterable[Agent] = AGENTS.values(), *, say: Say) -> Outcome:
    """Talk with each agent, which must be installed; each talk is told in a line."""
    outcome = Outcome()
    contexts = {agent: agent.talk_context for agent in chosen}
    with agents.prepared(directory, contexts) as server:
        for agent in contexts:
            _talk(agent, directory / agent.name, server, outcome, say)
    return outcome


def _talk(agent: Agent, place: Path, server: ServerProcess, outcome: Outcome, say: Say) -> None:
    lengths: list[int] = []
    for number in range(1, TURNS + 1):
        text = _text(number, agent.talk_context // _SHARE)
        (place / "work" / "note.txt").write_text(f"{NOTE}{text}", encoding="utf-8")
        *arguments, question = agent.turns[min(number, 2) - 1]
        if agent.call is None:  # it has no tool that would give it the note
            question = f"{question}\n\n{text}"
        before, log = counted(server), len(server.log)
        code, said, errors = launched(agent, (*arguments, question), place, server)
        counts = counted(server) - before
        lengths += list(prompt_lengths(server.log[log:]))[-1:]
        outcome.turns += 1
        for problem in problems_of(agent, place, code, said, counts):
            outcome.problems.append(f"{agent.name}, turn {number}: {problem}\n{said}{errors}")
    told = ", ".join(map(str, lengths))
    say(f"{agent.name}: a context of {agent.talk_context} tokens; the turns end with {told}")
    if hold_all(lengths, agent.talk_context // _SHARE):
        outcome.problems.append(f"{agent.name}: its prompts were never shortened: {told}")


def _text(number: int, tokens: int) -> str:
    """A text of about so many tokens, another one for each number."""
    words = random.Random(number).choices(_WORDS, k=tokens)
    lines = (words[start : start + _LINE] for start in range(0, len(words), _LINE))
    return "".join(f"{' '.join(line)}\n" for line in lines)


def hold_all(lengths: Sequence[int], note: int) -> bool:
    """Whether prompts of these lengths may hold all notes of so many tokens, one more in each:
    nothing was left out of the talk."""
    return lengths[-1] >= lengths[0] + (len(lengths) - 1) * note * 9 // 10


def prompt_lengths(log: str) -> Iterator[int]:
    """The lengths in tokens of the prompts that a part of the log tells of, in its order."""
    for line in log.splitlines():
        if '"prompt_tokens":' in line:
            yield int(json.loads(line)["prompt_tokens"])
