"""The live batch: a row's answer is the same alone, among strangers, and whoever comes and goes.

The oracle is the naive loop over mlx-lm's plain caches.
"""

import gc
import random
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.hardware import device_policy
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.request import RequestId
from omlx_server.core.step import Chunk, Join, SequenceId, Step
from tests.compute.drive import Drive, sampling
from tests.compute.oracle import greedy, is_greedy
from tests.compute.sampling.live import Fixed
from tests.tiny_models import CONFIGS, VOCAB, load_tiny

pytestmark = pytest.mark.usefixtures("either_order")

BROKEN: Any = ("not a token", 2, 3, 4)
LENGTHS = (1, 2, 3, 8, 9, 15, 17, 25, 33, 40, 65)  # windows are 16, chunks too


def prompts(seed: int, count: int) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(VOCAB) for _ in range(rng.choice(LENGTHS))) for _ in range(count)]


@pytest.mark.parametrize("architecture", CONFIGS)
def test_rows_that_join_and_leave_answer_as_if_alone(architecture: str) -> None:
    loaded = load_tiny(architecture)
    drive = Drive(loaded)
    rng = random.Random(7)
    wanted = {}
    for number, prompt in enumerate(prompts(1, 24)):
        name = f"r{number}"
        wanted[name] = (prompt, rng.choice([1, 4, 12, 30]))
        drive.add(name, prompt, sampling(wanted[name][1]))
        for _ in range(rng.choice([0, 1, 3])):
            drive.step()
        if number % 5 == 4:
            cancelled = f"r{number - 2}"
            drive.cancel(cancelled)
            wanted.pop(cancelled)
    drive.finish()
    assert drive.runner.idle
    for name, (prompt, count) in wanted.items():
        answer = drive.answers[f"{name}/0"]
        assert len(answer) == count and is_greedy(loaded.model, prompt, answer), name


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_seeded_answer_is_the_same_alone_and_in_a_crowd(architecture: str) -> None:
    loaded = load_tiny(architecture)
    [prompt] = prompts(3, 1)
    seeded = sampling(16, temperature=0.9, top_p=0.95, top_k=50, seed=42)
    alone = Drive(loaded)
    alone.add("x", prompt, seeded)
    alone.finish()

    crowd = Drive(loaded)
    for number, other in enumerate(prompts(4, 7)):
        if number == 4:
            crowd.add("x", prompt, seeded)
        crowd.add(f"s{number}", other, sampling(5 + 3 * number, temperature=1.3, seed=number))
        crowd.step()
    crowd.cancel("s3")
    crowd.finish()
    assert crowd.answers["x/0"] == alone.answers["x/0"]
    assert len(set(alone.answers["x/0"])) > 3, "a sampled answer that hardly varies shows nothing"


def test_choices_of_one_request_differ_and_repeat() -> None:
    loaded = load_tiny("llama")
    answers = []
    for _ in range(2):
        drive = Drive(loaded)
        drive.add("x", prompts(5, 1)[0], sampling(12, temperature=1.0, seed=1), n=3)
        drive.finish()
        answers.append([drive.answers[f"x/{i}"] for i in range(3)])
    assert answers[0] == answers[1]
    assert len({tuple(answer) for answer in answers[0]}) == 3


def test_a_failing_prompt_costs_only_itself() -> None:
    loaded = load_tiny("llama")
    runner = ModelRunner(loaded)
    good = (1, 2, 3, 4)
    joins = {
        name: Join(SequenceId(RequestId(name), 0), tokens, len(tokens), sampling(3))
        for name, tokens in (("good", good), ("bad", BROKEN), ("fine", (5, 6, 7, 8)))
    }
    chunks = tuple(Chunk(join.id, 0, join.context[:-1], (join,)) for join in joins.values())
    once = runner.prefill(Step(chunks=chunks))
    assert [chunk.prefill.request for chunk in once.lost] == ["bad"] and not once.failures
    again = runner.prefill(Step(chunks=tuple(once.lost)))  # who fails twice is to blame
    assert [failure.chunk.prefill.request for failure in again.failures] == ["bad"]
    live = (joins["good"].id, joins["fine"].id)
    rows = runner.read(runner.decode(Step(decodes=live))).rows
    assert rows[live[0]].tokens[0].id == greedy(loaded.model, good, 1)[0]


def test_a_prompt_cancelled_half_read_is_forgotten() -> None:
    drive = Drive(load_tiny("llama"))
    drive.add("long", (1,) * 100, sampling(3))
    drive.step()
    assert not drive.runner.idle
    drive.cancel("long")
    drive.finish()
    assert drive.runner.idle


def test_a_decode_of_other_rows_than_the_live_ones_is_refused() -> None:
    runner = ModelRunner(load_tiny("llama"))
    with pytest.raises(RuntimeError, match="live batch"):
        runner.decode(Step(decodes=(SequenceId(RequestId("ghost"), 0),)))


def test_a_chunk_that_does_not_end_its_prompt_never_makes_logits() -> None:
    """A prompt of 512 tokens by a vocabulary of 100,000 would be 200 MB of logits."""
    loaded = load_tiny("llama", vocab_size=100_000)
    runner = ModelRunner(loaded)
    prompt = tuple(range(513))
    join = Join(SequenceId(RequestId("x"), 0), prompt, 513, sampling(2))
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    runner.prefill(Step(chunks=(Chunk(join.id, 0, prompt[:-1], (join,)),)))
    assert mx.get_peak_memory() - before < 100e6


def test_memory_comes_back_after_a_crowd_has_left() -> None:
    drive = Drive(load_tiny("llama"))

    def crowd() -> int:
        for number, prompt in enumerate(prompts(9, 12)):
            drive.add(f"r{number}", prompt * 20, sampling(40))
            drive.step()
            if number % 2:
                drive.cancel(f"r{number - 1}")
        drive.finish()
        gc.collect()  # of other tests, too, whose models may hold each other
        mx.clear_cache()
        return int(mx.get_active_memory())

    first = crowd()
    assert abs(crowd() - first) < 100_000


def test_a_constrained_row_is_probed_beside_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """There its samples wait for the tokens of the step before."""
    policy = replace(device_policy.CPU, beside_host=True)
    monkeypatch.setattr(device_policy, "current", lambda: policy)
    constraint = Fixed(b"\xff" * 32)
    join = Join(SequenceId(RequestId("x"), 0), (1, 2, 3), 3, sampling(2), constraint)
    ModelRunner(load_tiny("llama")).probe(join)  # raises if the row fails
