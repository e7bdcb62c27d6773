"""In which order steps are launched and waited for: on a device beside the host (a fake one), and
on this one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from omlx_server.compute.hardware import device_policy
from omlx_server.core.request import FinishReason, SamplingParams
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.compute.cold_cache import open_tier
from tests.compute.drive import Drive, sampling
from tests.compute.fake_device import FakeDevice, Wait, fake_device
from tests.compute.templates import Template, form
from tests.compute.warm_runs import tiny, tokens

LIMITS = SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=16, max_batched_tokens=128)
BLOCK = 8
LONG = sampling(60)


@dataclass
class Scene:
    """A tiny model that is driven step by step on a fake device."""

    device: FakeDevice
    drive: Drive
    names: Iterator[int] = field(default_factory=lambda: iter(range(1000)))

    def add(self, length: int, params: SamplingParams = LONG, **changes: Any) -> str:
        name = f"r{next(self.names)}"
        self.drive.add(name, tokens(name, length), params, speculation="off", **changes)
        return name

    def waits(self, steps: int) -> list[Wait]:
        """Those of so many steps."""
        before = len(self.device.waits)
        for _ in range(steps):
            self.drive.step()
        return self.device.waits[before:]

    def check(self, steps: int) -> None:
        """In so many steps, each of which decodes, the host waits once for each decode, and for
        nothing else; and whenever it does it leaves the device with work."""
        waits = self.waits(steps)
        assert steps - 1 <= len(waits) <= steps + 1, (
            "tokens are taken in their own step, or the next"
        )
        assert all(wait.leaves_work and not wait.late for wait in waits)


@contextmanager
def scene(
    model: str = "llama",
    rows: int = 3,
    policy: device_policy.DevicePolicy = device_policy.GPU,
    **changes: Any,
) -> Iterator[Scene]:
    """`rows` of them decode."""
    with fake_device(policy) as device:
        made = Scene(device, Drive(tiny(model), LIMITS, BLOCK, **changes))
        for _ in range(rows):
            made.add(9)
        made.waits(8 if rows else 0)
        yield made


# Models of keys and values, of rings, of recurrent states, and of latent attention.
MODELS = ("llama", "gemma3_text", "qwen3_next", "deepseek_v3")


@pytest.mark.parametrize("model", MODELS)
def test_a_decode_is_launched_before_the_tokens_of_the_last_are_taken(model: str) -> None:
    with scene(model) as made:
        made.check(12)


@pytest.mark.parametrize("model", MODELS)
def test_chunks_are_launched_behind_the_decode_and_not_waited_for(model: str) -> None:
    with scene(model) as made:
        made.add(120)
        made.check(7)


def test_so_they_are_where_nobody_decodes() -> None:
    """The next one is launched before the last is waited for."""
    with scene(rows=0) as made:
        made.add(200)
        assert made.waits(1) == []
        made.check(9)


@pytest.mark.parametrize("model", MODELS)
def test_rows_that_join_are_not_waited_for(model: str) -> None:
    with scene(model) as made:
        for _ in range(3):
            made.add(9)
        made.check(8)
        assert len(made.drive.instance.scheduler.queues.running) == 6


@pytest.mark.parametrize("model", MODELS)
def test_rows_that_leave_are_not_waited_for(model: str) -> None:
    with scene(model) as made:
        for _ in range(3):
            made.add(9, sampling(6))
        made.check(14)
        assert len(made.drive.ends) == 3


@pytest.mark.parametrize("model", MODELS)
def test_a_restore_is_not_waited_for(model: str) -> None:
    with scene(model) as made:
        known = tokens("known", 40)
        made.drive.add("first", known, sampling(2), speculation="off")
        made.waits(8)
        assert "first/0" in made.drive.ends
        made.drive.add("again", [*known, *tokens("more", 20)], LONG, speculation="off")
        made.check(6)
        assert made.drive.admitted["again"].cached >= 32


def test_what_rows_ask_for_is_not_waited_for() -> None:
    with scene(rows=0) as made:
        made.add(9, sampling(60, repetition_penalty=1.2, top_logprobs=3))
        made.add(9, sampling(60, temperature=1.0, top_p=0.9, top_k=5, seed=1))
        made.add(9, sampling(60, min_tokens=20, logit_bias=((3, 1.0),)))
        made.waits(6)
        made.check(10)


@pytest.mark.parametrize("chunks", [False, True])
def test_a_forward_runs_while_masks_are_made(*, chunks: bool) -> None:
    """Masks of decode N need the tokens of N - 1: when these have come its forward is launched."""
    with scene(rows=1) as made:
        for name in "ab":
            made.add(9, constraint=Template(form(name)))
        made.waits(4)
        if chunks:
            made.add(200)
        made.check(12)
        made.drive.finish()
        assert len(made.drive.ends) == 3 + chunks


def test_who_leaves_is_known_to_the_next_turn_of_a_conversation() -> None:
    """It comes when the last token has, and finds all that was computed for that."""
    with scene() as made:
        prompt = tokens("talk", 21)
        made.drive.add("talk", prompt, sampling(7), speculation="off")
        while "talk/0" not in made.drive.ends:
            made.waits(1)
        answer = made.drive.answers["talk/0"]
        made.drive.add("on", [*prompt, *answer, 1, 2], LONG, speculation="off")
        made.waits(2)
        assert made.drive.admitted["on"].cached == len(prompt) + len(answer) - 1


def test_answers_are_those_of_the_other_order() -> None:
    answers = []
    for policy in (device_policy.CPU, device_policy.GPU):
        with scene("qwen3_next", policy=policy) as made:
            for step in range(6):
                made.add(10 + 21 * step, sampling(5 + step, temperature=0.8, seed=step))
                made.waits(step % 3)
            made.drive.finish()
            answers.append(made.drive.answers)
    assert answers[0] == answers[1]


def test_what_chunks_that_failed_had_cut_is_forgotten() -> None:
    """It is in the cache while they run, so that the next prompt can be planned."""
    with scene("mamba2", rows=0) as made:
        made.add(200)
        made.waits(5)
        index = made.drive.instance.cache.index
        assert (len(index), index.checkpoint_count) == (10, 2)
        made.drive.lose()
        assert (len(index), index.checkpoint_count) == (8, 2), "all other chunks were done"
        made.drive.finish()


def test_a_checkpoint_that_failed_is_forgotten_where_its_block_is_known() -> None:
    with scene("mamba2", rows=0) as made:
        made.add(200)
        made.drive.finish()
        index = made.drive.instance.cache.index
        blocks = len(index)
        for checkpoint in [c for block in index.blocks() for c in block.checkpoints.values()]:
            made.drive.instance.cache.eviction.note_gone(index.remove([checkpoint.id]))
        made.drive.instance.drop_evicted()
        made.drive.add("again", tokens("r0", 200), LONG, speculation="off")
        while not index.checkpoint_count:
            made.waits(1)
        made.drive.lose()
        assert (len(index), index.checkpoint_count) == (blocks, 0)
        made.drive.finish()


def test_what_rows_left_is_forgotten_if_it_was_not_computed() -> None:
    """A step that fails takes what was cut before its decode."""
    with scene("mamba2", rows=1) as made:
        made.drive.add("ends", tokens("ends", 21), sampling(4), speculation="off")
        instance, index = made.drive.instance, made.drive.instance.cache.index
        while not instance._tails:
            before = index.checkpoint_count
            made.waits(1)
        assert index.checkpoint_count == before + 1
        made.drive.lose()
        assert index.checkpoint_count == before
        made.drive.finish()


@pytest.mark.parametrize("policy", [device_policy.CPU, device_policy.GPU])
def test_a_constraint_with_a_problem_ends_its_own_request(
    policy: device_policy.DevicePolicy,
) -> None:
    """Its last token may be fed already. What was fed is kept, in the middle of a block or not."""
    with scene(policy=policy) as made:
        for at in range(3, 12):
            made.add(9, constraint=Template(form("bad"), fails_at=at))
            made.waits(2)
        made.drive.finish()
        ends = list(made.drive.ends.values())
        assert ends.count(FinishReason.ERROR) == 9 and ends.count(FinishReason.LENGTH) == 3


def test_what_chunks_cut_is_written_when_they_are_done(tmp_path: Path) -> None:
    with scene(rows=0, cold=open_tier(tmp_path), write_through=True) as made:
        made.add(200)
        made.waits(1)
        tiers = made.drive.instance.tiers
        assert len(tiers.hot) == 2 and not tiers.writing
        made.waits(1)
        assert len(tiers.writing) == 2
        made.drive.finish()


def test_where_launches_take_long_a_step_with_chunks_is_done_when_its_turn_ends() -> None:
    with scene(policy=device_policy.CPU) as made:
        made.add(120)
        made.waits(1)
        for _ in range(5):
            decode, chunks = made.waits(1)
            assert not decode.leaves_work and not chunks.leaves_work
            assert made.drive.pipeline.is_empty
