"""Sequences that go on in the buffers of one that has ended."""

from collections.abc import Sequence

import mlx.core as mx
import pytest

from omlx_server.compute.kv.spans import TokenRun
from omlx_server.compute.model.loader import LoadedModel
from tests.compute.drive import Drive, sampling
from tests.compute.oracle import greedy, is_greedy
from tests.compute.referring import SIZE, Referring, adopt_always, check_books
from tests.compute.warm_runs import LIMITS, tiny, tokens
from tests.tiny_models import load_tiny

pytestmark = pytest.mark.usefixtures("either_order")

ARCHITECTURES = ("llama", "deepseek_v3", "gemma3_text", "qwen3_next", "gpt_oss")


def driven(loaded: LoadedModel) -> Drive:
    return Drive(loaded, LIMITS, SIZE, codec=Referring)


def runs(drive: Drive) -> list[TokenRun]:
    return list(drive.runner.runs._runs)


def check_answer(drive: Drive, name: str, prompt: Sequence[int], count: int = 20) -> list[int]:
    answer = drive.answer(name, prompt, count)
    assert is_greedy(drive.loaded.model, prompt, answer), name
    return answer


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_conversation_stays_in_one_run(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt_always(monkeypatch)
    drive, told = driven(tiny(architecture)), tokens("said", 60)
    for turn in range(5):
        told = [*told, *check_answer(drive, f"{turn}", told), *tokens(turn, 15)]
        [run] = runs(drive)
        assert run.is_free and not run.strips[0].first
        assert turn == 0 or drive.admitted[f"{turn}"].cached > 40
    check_books(drive)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_who_goes_back_leaves_to_blocks_what_is_behind(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is asked for again, and another one; then the first conversation goes on."""
    adopt_always(monkeypatch)
    drive, prompt = driven(tiny(architecture)), tokens("prompt", 90)
    first = check_answer(drive, "first", prompt, 17)
    check_answer(drive, "again", prompt, 17)
    check_answer(drive, "other", [*prompt[:-3], 5, 4], 17)
    check_answer(drive, "on", [*prompt, *first, *tokens("on", 9)])
    check_books(drive)


@pytest.mark.parametrize("behind", [8, 80])
def test_a_run_of_which_much_is_behind_is_referred_to(
    behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt_always(monkeypatch)
    drive, prompt = driven(tiny("llama")), tokens("prompt", 64)
    check_answer(drive, "first", [*prompt, *tokens("behind", behind)], 4)
    check_answer(drive, "second", [*prompt, 7, 8])
    assert len(runs(drive)) == (1 if behind == 8 else 2)
    check_books(drive)


def test_others_refer_to_a_run_that_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_always(monkeypatch)
    drive, prompt = driven(tiny("llama")), tokens("prompt", 64)
    check_answer(drive, "first", prompt, 1)
    asked = {f"{n}": [*prompt, *tokens(n, 9)] for n in range(3)}
    for name, its_prompt in asked.items():
        drive.add(name, its_prompt, sampling(20))
        for _ in range(4):
            drive.step()
    drive.finish()
    for name, its_prompt in asked.items():
        assert is_greedy(drive.loaded.model, its_prompt, drive.answers[f"{name}/0"])
    check_books(drive)


@pytest.mark.parametrize(("dtype", "adopts"), [(mx.float32, False), (mx.bfloat16, True)])
def test_plain_keys_in_half_precision_are_taken_over(dtype: mx.Dtype, adopts: bool) -> None:
    """In float32 a row refers to them, so that a hit copies nothing at all."""
    loaded = load_tiny("llama")
    loaded.model.set_dtype(dtype)
    drive, prompt = driven(loaded), tokens("prompt", 64)
    drive.answer("first", prompt, 1)
    drive.answer("second", [*prompt, 7, 8], 20)
    assert len(runs(drive)) == (1 if adopts else 2)
    if not adopts:
        assert drive.answers["second/0"] == greedy(loaded.model, [*prompt, 7, 8], 20)
    check_books(drive)
