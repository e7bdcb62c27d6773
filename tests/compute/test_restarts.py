"""How much of a conversation comes back from files after a restart, whatever the hot tier keeps."""

from pathlib import Path

import pytest

from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import Miss
from tests.compute.cold_cache import instance
from tests.compute.drive import ROOMY, Drive, sampling
from tests.compute.held import active
from tests.compute.warm_runs import every_kind, tokens
from tests.tiny_models import CONFIGS

NOTHING = HotBudget(nbytes=0, checkpoint_bytes=0, lattice_start=32)
TURNS, NEW, ANSWER = 3, 30, 5
BEFORE_THE_LAST = 1
LONG = 600
SMALL = 150_000  # bytes: tokens, logits, the state of sampling


def converse(drive: Drive) -> list[int]:
    """A conversation of a few turns, with its last answer."""
    told = list[int]()
    for turn in range(TURNS):
        told += tokens(f"turn {turn}", NEW)
        told += drive.answer(f"turn {turn}", told, ANSWER)
    return told


@every_kind(CONFIGS)
def test_all_that_was_cached_is_cached_after_a_restart(architecture: str, tmp_path: Path) -> None:
    with instance(tmp_path, architecture, write_through=True) as drive:
        told = converse(drive)
        drive.answer("before", told, 1)
        before = drive.admitted["before"].cached
        held = drive.instance.cache.index.nbytes
    assert before >= len(told) - NEW
    for hot in (NOTHING, HotBudget(held, held, lattice_start=32), ROOMY):
        with instance(tmp_path, architecture, budget=hot) as again:
            again.answer("after", told, 1)
            assert again.admitted["after"].cached >= 0.95 * before
            assert again.admitted["after"].miss is Miss.NONE or before < len(told)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3_next"])
def test_conversations_that_do_not_fit_together_come_back_one_after_the_other(
    architecture: str, tmp_path: Path
) -> None:
    """What waits for its turn makes way for who has it, and is read when its own has come."""
    told = [tokens(f"conversation {number}", 90) for number in range(4)]
    with instance(tmp_path, architecture, write_through=True) as drive:
        for number, prompt in enumerate(told):
            drive.answer(str(number), prompt, 1)
        held = drive.instance.cache.index.nbytes
    with instance(tmp_path, architecture, budget=NOTHING) as again:
        again.instance.cache.read_ahead.most_bytes = lambda: held // 3
        for number, prompt in enumerate(told):
            again.add(str(number), prompt, sampling(1))
        again.finish()
        for number, prompt in enumerate(told):
            assert again.admitted[str(number)].cached == len(prompt) - BEFORE_THE_LAST


def test_what_there_is_no_room_for_is_told_so(tmp_path: Path) -> None:
    told = tokens("long", 90)
    with instance(tmp_path, "llama", write_through=True) as drive:
        drive.answer("before", told, 1)
        held = drive.instance.cache.index.nbytes
    with instance(tmp_path, "llama", budget=NOTHING) as again:
        again.instance.cache.read_ahead.most_bytes = lambda: held // 2
        again.answer("after", told, 1)
        admitted = again.admitted["after"]
        assert 0 < admitted.cached < len(told) // 2 and admitted.miss is Miss.NO_ROOM


@every_kind(CONFIGS)
def test_what_comes_back_takes_the_memory_that_the_account_says(
    architecture: str, tmp_path: Path
) -> None:
    """By MLX's own count: no layer stays because another one was in a buffer with it."""
    told = [tokens(f"conversation {number}", LONG) for number in range(2)]
    with instance(tmp_path, architecture, write_through=True, size=64) as drive:
        for number, prompt in enumerate(told):
            drive.answer(str(number), prompt, 1)
    with instance(tmp_path, architecture, size=64) as again:
        before = active()
        for number, prompt in enumerate(told):
            again.answer(str(number), prompt, 1)
        assert again.admitted["1"].cached == LONG - BEFORE_THE_LAST
        account = again.instance.ledger()
        held = account.live + account.blocks + account.checkpoints
        assert active() - before < held + SMALL
