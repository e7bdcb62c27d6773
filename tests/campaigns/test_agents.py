"""The short form of `scripts/campaign agents`, and the scripted model that it needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.harness import UNPROBED, Json, ServerProcess, serving
from tests.campaigns import agents
from tests.campaigns.agent_programs import AGENTS
from tests.campaigns.agent_talks import hold_all, prompt_lengths
from tests.scripted_models import FAILED, call_of, save_scripted

QUICK = ("codex", "claude")
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("scripted")
    call = call_of("read", {"path": "note.txt"})
    save_scripted(place / "models" / "m", call=call, answer="Seven, it says.", expected="seven")
    sets = (f"models.dirs={place / 'models'}", UNPROBED)
    with serving("m", place / "server", *sets) as server:
        yield server


def test_a_scripted_model_calls_its_tool_and_judges_what_that_gave(scripted: ServerProcess) -> None:
    asks = {"tools": [TOOL], "temperature": 1}
    (choice,) = scripted.chat("How many?", **asks)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "read", "arguments": '{"path":"note.txt"}'}

    def answer(given: str) -> Json:
        body = scripted.body("How many?", **asks)
        result = {"role": "tool", "tool_call_id": call["id"], "content": given}
        body["messages"] += [choice["message"], result]
        message: Json = scripted.post(body).json()["choices"][0]["message"]
        return message

    assert answer("It is seven.")["content"] == "Seven, it says."
    assert answer("There is no such file.")["content"] == FAILED


def test_an_agent_has_two_turns_and_finds_the_first_in_the_cache(tmp_path: Path) -> None:
    installed = [AGENTS[name] for name in QUICK if AGENTS[name].is_installed]
    if not installed:
        pytest.skip("no agent is installed: scripts/campaign agents codex installs one")
    outcome = agents.campaign(tmp_path, installed[:1], say=lambda _: None)
    assert not outcome.problems, outcome.problems
    assert outcome.turns == 2


def test_a_talk_that_was_never_shortened_is_known_by_the_log() -> None:
    lines = ['{"prompt_tokens":9}', '{"message":"no prompt"}', '{"prompt_tokens":12}']
    assert list(prompt_lengths("\n".join(lines))) == [9, 12]
    assert hold_all([900, 1010, 1120], note=100)
    assert not hold_all([900, 1010, 1010], note=100)  # as much was left out as came
    assert not hold_all([900, 1010, 700, 810], note=100)
