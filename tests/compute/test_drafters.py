"""What drafts beside the text keeps its caches in step with its rows, whatever becomes of these."""

import random
from dataclasses import replace

import pytest

from omlx_server.compute.model.pairing import paired
from omlx_server.core.speculation.methods import Method
from tests.compute.drive import LIMITS, Drive, sampling
from tests.compute.warm_runs import tiny, tokens

BLOCK = 16


def prompt_of(rng: random.Random) -> list[int]:
    """Of one of three beginnings, which blocks may have already, and an end of its own."""
    head = tokens(f"head {rng.randrange(3)}", rng.choice((5, 20, 40)))
    return [*head, *tokens(rng.random(), rng.choice((1, 2, 15)))]


def add(drive: Drive, rng: random.Random, name: str) -> None:
    """A request of one of many kinds. Some rows draft nothing."""
    params = sampling(
        rng.choice((2, 9, 40)),
        temperature=rng.choice((0, 1.0)),
        seed=rng.randrange(99),
        repetition_penalty=rng.choice((1.0, 1.3)),
        frequency_penalty=rng.choice((0.0, 0.4)),
        stop_ids=frozenset(rng.sample(range(199), 2)),
    )
    speculation = rng.choice((None, None, None, "off"))
    drive.add(name, prompt_of(rng), params, n=rng.choice((1, 1, 3)), speculation=speculation)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next", "deepseek_v3"])
def test_a_model_that_drafts_for_itself_is_always_right(architecture: str, seed: int) -> None:
    rng, loaded = random.Random(seed), tiny(architecture)
    drive = Drive(paired(loaded, loaded), replace(LIMITS, speculation="draft"), BLOCK)
    for number in range(14):
        add(drive, rng, f"r{number}")
        for _ in range(rng.choice((0, 1, 4, 15))):
            drive.step()
        if rng.random() < 0.3:
            drive.cancel(f"r{rng.randrange(number + 1)}")
    drive.finish()
    assert drive.instance.speculation is not None
    counts = drive.instance.speculation.counts
    print(counts)
    assert counts.drafted[Method.DRAFT] > 100
    assert counts.accepted == counts.drafted
