"""What several ranks answer together is what one process answers: random requests of every kind, at
random times, with cancels, lost steps and drafts."""

import pytest

from tests.cluster.group import Group
from tests.cluster.scenarios import Scenario, answers, load
from tests.sweeps import wide

FOUR_LAYERS = {"num_hidden_layers": 4}
OF_TWO = (
    Scenario("llama", 2, drafts=True),
    Scenario("qwen3", 3),
    Scenario("qwen3_moe", 1, drafts=True),
    Scenario("gpt_oss", 2, drafts=True),
    Scenario("deepseek_v3", 2, drafts=True),
    Scenario("qwen3_next", 0, drafts=True, changes=FOUR_LAYERS),
    Scenario("qwen3_5", 0, drafts=True, changes={**FOUR_LAYERS, "vocab_size": 200}),
    Scenario("llama_sliding", 4, drafts=True),
    Scenario("llama", 4, drafts=True, kv=("affine", 8, 32), changes={"head_dim": 64}),
    Scenario("llama", 5, kv=("turboquant", 4, 32), changes={"head_dim": 64}),
)
OF_TWO_MORE = (Scenario("qwen3_next", 2, changes=FOUR_LAYERS),)
# Three, so that one is neither the first nor the last. Four processes on two cores take long.
OF_THREE = (Scenario("qwen3_next", 0, drafts=True, changes={"num_hidden_layers": 6}),)
OF_FOUR = (Scenario("qwen3_next", 0, drafts=True, changes={"num_hidden_layers": 8}),)


@pytest.mark.parametrize("scenario", [*OF_TWO, *wide(OF_TWO_MORE)], ids=str)
def test_two_ranks_answer_as_one_process(two: Group, scenario: Scenario) -> None:
    assert two.answers(scenario) == answers(scenario, load(scenario))


@pytest.mark.parametrize("scenario", OF_THREE, ids=str)
def test_so_do_three(three: Group, scenario: Scenario) -> None:
    assert three.answers(scenario) == answers(scenario, load(scenario))


@pytest.mark.parametrize("scenario", wide(OF_FOUR), ids=str)
def test_so_do_four(four: Group, scenario: Scenario) -> None:
    assert four.answers(scenario) == answers(scenario, load(scenario))
