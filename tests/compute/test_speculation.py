"""Drafts change no answer: random requests of every kind, with drafts and without, on every cache
class. And what was drafted wrongly leaves no trace."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.batch import LiveBatch
from omlx_server.compute.caches import Caches
from omlx_server.compute.drafting.base import Drafted, Drafter
from omlx_server.compute.drafting.heads_drafter import HeadsDrafter
from omlx_server.compute.drafting.model_drafter import ModelDrafter
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.model.pairing import paired
from omlx_server.compute.sampler import SamplingRow
from omlx_server.core.request import FinishReason
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.speculation.methods import Mode
from tests.compute.all_kinds import BLOCK, run
from tests.compute.drive import LIMITS, Drive, sampling
from tests.compute.headed import HEADED, headed
from tests.compute.kv.every_scheme import FOUR_BITS, every_kind
from tests.compute.kv.models import quantised
from tests.compute.warm_runs import tiny, tokens
from tests.sweeps import sweep
from tests.tiny_models import CONFIGS, VOCAB

pytestmark = pytest.mark.usefixtures("either_order")

WITHOUT = replace(LIMITS, speculation="off")


def of_requests(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name.startswith("r")}


@pytest.mark.parametrize(("architecture", "seed"), sweep(CONFIGS, [0, 2]))
def test_answers_are_the_same_with_drafts_and_without(architecture: str, seed: int) -> None:
    check(tiny(architecture), seed)


@pytest.mark.parametrize(
    ("scheme", "architecture"), sweep(FOUR_BITS, ["llama", "gemma3_text", "qwen3_next"])
)
def test_so_they_are_with_keys_and_values_in_few_bits(architecture: str, scheme: Scheme) -> None:
    check(quantised(architecture, scheme), 5)


# Drafts that are all right, that are hardly ever right, and of every kind of cache.
PAIRS = (
    ("llama", "llama"),
    ("llama", "qwen3"),
    ("llama", "gemma3_text"),
    ("llama", "qwen3_next"),
    ("gemma3_text", "gemma3_text"),
    ("qwen3_next", "llama"),
    ("qwen3_next", "qwen3_next"),
    ("deepseek_v3", "llama"),
)


@pytest.mark.parametrize(("pair", "drafting"), sweep(PAIRS, ["auto", "draft"]))
def test_so_they_are_with_a_draft_model(pair: tuple[str, str], drafting: Mode) -> None:
    check(paired(*map(tiny, pair)), 3, replace(LIMITS, speculation=drafting))


@every_kind
def test_so_they_are_with_a_draft_model_beside_few_bits(scheme: Scheme) -> None:
    pair = paired(quantised("llama", scheme), tiny("llama"))
    check(pair, 5, replace(LIMITS, speculation="draft"))


@pytest.mark.parametrize("architecture", HEADED)
def test_so_they_are_with_heads(architecture: str) -> None:
    check(headed(architecture), 1, replace(LIMITS, speculation="heads"))


def of_one_token(loaded: LoadedModel, drafting: Mode) -> dict[str, list[int]]:
    """Three answers to a prompt of one token."""
    drive = Drive(loaded, replace(LIMITS, speculation=drafting), BLOCK)
    drive.add("r", tokens("one", 1), sampling(12, temperature=1.0), n=3)
    drive.finish()
    assert drive.instance.speculation is not None
    assert (drive.instance.speculation.counts.drafted.total() > 0) == (drafting != "off")
    return drive.answers


def half_right(
    monkeypatch: pytest.MonkeyPatch, drafter: type[Drafter], answers: dict[str, list[int]]
) -> None:
    """It drafts one or two tokens, all right for one choice, and all wrong for the next."""
    draft = drafter.draft

    def known(
        self: Drafter,
        newest: mx.array,
        rows: Sequence[SamplingRow],
        counts: Sequence[int],
        caches: Caches,
    ) -> Drafted:
        found = []
        for row, count in zip(rows, counts, strict=True):
            coming = answers[f"{row.id.request}/{row.id.choice}"][row.position - 1 :][
                : min(count, 2)
            ]
            found.append(tuple((token + row.id.choice % 2) % VOCAB for token in coming))
        return replace(draft(self, newest, rows, counts, caches), tokens=found)

    monkeypatch.setattr(drafter, "draft", known)


@pytest.mark.parametrize("target", ["qwen3_next", "falcon_h1", "llama"])
def test_so_they_are_to_one_token(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing yet that recurrent layers could go back to."""
    loaded = paired(tiny(target), tiny("llama"))
    expected = of_one_token(loaded, "off")
    half_right(monkeypatch, ModelDrafter, expected)
    assert of_one_token(loaded, "draft") == expected


def test_so_they_are_to_one_token_with_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = headed("qwen3_5")
    expected = of_one_token(loaded, "off")
    half_right(monkeypatch, HeadsDrafter, expected)
    assert of_one_token(loaded, "heads") == expected


def check(loaded: LoadedModel, seed: int, limits: SchedulerLimits = LIMITS) -> None:
    drafted, plain = (run(loaded, seed, limits) for limits in (limits, WITHOUT))
    assert of_requests(drafted.answers) == of_requests(plain.answers)
    assert of_requests(drafted.ends) == of_requests(plain.ends)
    told, expected = of_requests(drafted.logprobs), of_requests(plain.logprobs)
    assert told.keys() == expected.keys()
    for name in told:
        for (token, mine), (same, theirs) in zip(told[name], expected[name], strict=True):
            assert token == same
            assert mine.chosen == pytest.approx(theirs.chosen, abs=1e-4)
            assert [v for _, v in mine.top] == pytest.approx([v for _, v in theirs.top], abs=1e-4)


def test_a_row_is_cut_once_where_all_drafts_come_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step was planned with drafts and decodes without: its cuts are not made a second time."""
    monkeypatch.setattr(LiveBatch, "draft_feeds", lambda self, drafts, asks: [])
    for length in range(3, 12):
        drive = Drive(tiny("llama"), LIMITS, 8)
        drive.add("drafted", (1, 2, 3, 4, 5) * 4, sampling(40))
        drive.add("plain", range(20, 20 + length), sampling(40), speculation="off")
        drive.finish()
        assert set(drive.ends.values()) == {FinishReason.LENGTH}
