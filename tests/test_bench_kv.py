"""scripts/bench kv: its arithmetic, its bounds, and one run of it on a small model."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from scripts.benchmarks import kv_command, kv_quality, tiny
from scripts.benchmarks.kv_command import KV_QUICK, PARTS, KvPlan
from scripts.benchmarks.kv_quality import Quality
from scripts.benchmarks.kv_variants import FOUR_BITS, PLAIN
from tests.tiny_models import save_tiny

ROOT = Path(__file__).parent.parent
AFFINE, ROTATED, TURBOQUANT = FOUR_BITS
TINY = replace(
    KV_QUICK,
    repeats=2,
    variants=(ROTATED,),
    compared=(ROTATED,),
    text_tokens=120,
    contexts=(70,),
    streams=(1, 2),
    prefill_tokens=80,
    grouped_tokens=20,
)


def test_chunks_are_those_of_the_server_and_cover_the_text() -> None:
    spans = list(kv_quality.chunks(2500))
    assert spans[0][0] == 0 and spans[-1][1] == 2500
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert not list(kv_quality.chunks(0))


def test_the_texts_are_long_enough_for_a_verdict() -> None:
    """About 3.7 of their characters are a token of the starter model."""
    texts = [path.read_text(encoding="utf-8") for path in kv_quality.TEXTS.glob("*.txt")]
    assert all(text.isascii() for text in texts) and len("".join(texts)) / 5 > 7000


def quality(loss: float, kl: float) -> Quality:
    return Quality(20 * (1 + loss), loss, 0.01, kl, 0.9)


@pytest.mark.parametrize(
    ("rotated", "met"),
    [
        (quality(0.029, 0.029), [True, True]),
        (quality(0.031, 0.029), [False, True]),
        (quality(0.029, 0.031), [True, False]),
        (quality(-0.001, 0.029), [True, True]),
    ],
)
@pytest.mark.parametrize("plan", [KvPlan(), KV_QUICK])
def test_rotated_may_lose_a_third_of_what_affine_loses(
    rotated: Quality, met: list[bool], plan: KvPlan
) -> None:
    """A short text gives no verdict."""
    qualities = {
        PLAIN: quality(0.0, 0.0),
        AFFINE: quality(0.09, 0.09),
        ROTATED: rotated,
        TURBOQUANT: quality(0.01, 0.01),
    }
    required = kv_command.requirements(kv_command.quality(qualities), plan)
    verdicts = [r.met for r in required if r.title.startswith("rotated 4")]
    assert verdicts == (met if plan.text_tokens > 10_000 else [None, None])


class Quiet:
    def begin(self, step: str) -> None: ...
    def done(self, outcome: str) -> None: ...


def test_a_run_measures_everything(tmp_path: Path) -> None:
    model = tiny.save(tmp_path / "model")
    vocab = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    save_tiny(model, "llama", vocab_size=vocab, head_dim=64)  # for groups of 64
    metrics = [m for part in PARTS for m in kv_command.measure(part, TINY, model, Quiet())]
    for metric in metrics:
        assert metric.median(PLAIN.name) is not None, metric.spec.name
    values = {metric.spec.name: metric.median(ROTATED.name) or 0.0 for metric in metrics}
    assert values["kl"] > 0 and values["perplexity"] > 1
    assert values["decode_behind_70_tokens_2_at_once"] > 0
    assert values["prefill_of_80_tokens_1_at_once"] > 0


def test_a_wrong_option_is_one_line() -> None:
    command = [sys.executable, "-m", "scripts.benchmarks", "kv", "--only", "taste"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert f"known: {', '.join(PARTS)}" in result.stderr
    assert "Traceback" not in result.stderr
