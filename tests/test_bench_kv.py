"""scripts/bench kv: its arithmetic, its bounds, its files, and one run of it on a small model."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from scripts.benchmarks import kv_bounds, kv_quality, kv_quantities, kv_report, tiny
from scripts.benchmarks.kv_format import bytes_per_token
from scripts.benchmarks.kv_measure import KvBench, count_kv_steps
from scripts.benchmarks.kv_plan import KV_QUICK, MEASUREMENTS, KvPlan
from scripts.benchmarks.kv_quantities import Group
from scripts.benchmarks.kv_report import KvReport
from scripts.benchmarks.kv_variants import FOUR_BITS, PLAIN, Variant
from scripts.benchmarks.metrics import Requirement, find
from tests.tiny_models import save_tiny

ROOT = Path(__file__).parent.parent
AFFINE, ROTATED, TURBOQUANT = FOUR_BITS

TINY = replace(
    KV_QUICK,
    repeats=2,
    variants=(ROTATED,),
    compared=(ROTATED,),
    text_tokens=120,
    hot_bytes=1 << 20,
    fill_layers=1,
    peak_layers=2,
    peak_tokens=300,
    contexts=(70,),
    streams=(1, 2),
    prefill_tokens=80,
    grouped_tokens=20,
)


# -- arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "width", "nbytes"),
    [
        (PLAIN, 4, 8192),
        (PLAIN, 2, 4096),
        (AFFINE, 4, 2 * (512 + 16 * 8)),  # codes; 16 groups with a scale and a bias
        (ROTATED, 2, 2 * (512 + 16 * 4)),
        (Variant("affine", 3), 4, 2 * (384 + 16 * 8)),
        (TURBOQUANT, 4, 2 * (512 + 8 * 2)),  # a scale for each of 8 heads
        (TURBOQUANT, 2, 2 * (512 + 8 * 2)),
        (Variant("turboquant", 3.5), 4, (384 + 512) + 2 * 8 * 2),
    ],
)
def test_the_bytes_of_a_format(variant: Variant, width: int, nbytes: int) -> None:
    assert bytes_per_token(variant, heads=8, head_dim=128, width=width) == nbytes


def test_chunks_are_those_of_the_server_and_cover_the_text() -> None:
    spans = list(kv_quality.chunks(2500))
    assert spans[0][0] == 0 and spans[-1][1] == 2500
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert not list(kv_quality.chunks(0))


def test_the_texts_are_long_enough_for_a_verdict() -> None:
    """About 3.7 of their characters are a token of the starter model."""
    texts = [path.read_text(encoding="utf-8") for path in kv_quality.TEXTS.glob("*.txt")]
    assert all(text.isascii() for text in texts) and len("".join(texts)) / 5 > 7000


# -- bounds --------------------------------------------------------------------------------------


def quality(loss: float, kl: float) -> Mapping[str, float]:
    ppl = 20 * (1 + loss)
    return {"perplexity": ppl, "loss": loss, "error": 0.01, "kl": kl, "agreement": 0.9}


def measured(rotated: Mapping[str, float]) -> list[Group]:
    found = {
        PLAIN.name: quality(0.0, 0.0),
        AFFINE.name: quality(0.09, 0.09),
        ROTATED.name: rotated,
        TURBOQUANT.name: quality(0.01, 0.01),
    }
    return [kv_quantities.quality(2829, found)]


def verdicts(groups: Sequence[Group], plan: KvPlan) -> list[Requirement]:
    return [r for r in kv_bounds.requirements(groups, plan) if r.title.startswith("rotated 4")]


@pytest.mark.parametrize(
    ("rotated", "met"),
    [
        (quality(0.029, 0.029), [True, True]),
        (quality(0.031, 0.029), [False, True]),
        (quality(0.029, 0.031), [True, False]),
        (quality(-0.001, 0.029), [True, True]),
    ],
)
def test_rotated_may_lose_a_third_of_what_affine_loses(
    rotated: Mapping[str, float], met: list[bool]
) -> None:
    assert [r.met for r in verdicts(measured(rotated), KvPlan())] == met


def test_a_short_text_gives_no_verdict() -> None:
    assert [r.met for r in verdicts(measured(quality(0.5, 0.5)), KV_QUICK)] == [None, None]


def test_the_worst_scheme_decides_and_all_must_be_there() -> None:
    filled = {"none": 1000, "affine 4": 3300, "rotated 4": 3500, "turboquant 4": 3800}
    by_name = {name: {"tokens": count, "nbytes": 1 << 20} for name, count in filled.items()}
    held = kv_quantities.tokens(KvPlan(), {"bfloat16": by_name})
    (verdict,) = [r for r in kv_bounds.requirements([held], KvPlan()) if "bfloat16" in r.title]
    assert (verdict.value, verdict.met) == (3.3, False)
    del by_name["rotated 4"]
    held = kv_quantities.tokens(KvPlan(), {"bfloat16": by_name})
    (verdict,) = [r for r in kv_bounds.requirements([held], KvPlan()) if "bfloat16" in r.title]
    assert verdict.met is None


def test_a_copy_in_full_precision_is_seen() -> None:
    nbytes = 8192 * 32 * 4000
    peaks = {PLAIN: {"cache": nbytes, "prefill": nbytes, "rebuild": nbytes}}
    for variant in FOUR_BITS:
        peaks[variant] = {"cache": nbytes // 6, "prefill": nbytes // 5, "rebuild": nbytes // 6}
    peaks[ROTATED]["rebuild"] += nbytes
    found = [
        r
        for r in kv_bounds.requirements([kv_quantities.memory(KvPlan(), peaks)], KvPlan())
        if " of a prefill" in r.title or " of a rebuild" in r.title
    ]
    assert [r.met for r in found] == [True, True, False, True]


def test_a_layer_that_lost_its_class_is_off_its_format() -> None:
    size = bytes_per_token(ROTATED, 8, 128, 4)
    held = {"prefilled": [size], "rebuilt": [size], "same_classes": True}
    for change, met in (
        ({}, True),
        ({"rebuilt": [size, 1.06 * size]}, False),
        ({"same_classes": False}, False),
    ):
        found = {"float32": {ROTATED.name: {**held, **change}}}
        group = kv_quantities.held_bytes([ROTATED], found)
        assert kv_bounds.requirements([group], KvPlan())[-1].met is met


# -- the result ----------------------------------------------------------------------------------


@pytest.fixture
def result() -> KvReport:
    rates = [[{"none": 50.0, "rotated 4": 40.0}, {"none": 25.0, "rotated 4": 22.5}]]
    groups = [
        *measured(quality(0.02, 0.02)),
        kv_quantities.decode([{"context": 4000, "streams": 1}], rates),
    ]
    return KvReport(
        created=datetime(2026, 1, 2, tzinfo=UTC),
        machine={"device": "CPU"},
        model="starter",
        plan=KvPlan(),
        groups=groups,
        requirements=kv_bounds.requirements(groups, KvPlan()),
    )


def test_speed_is_shown_as_a_ratio_within_a_round(result: KvReport) -> None:
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(kv_report.tables(result))
    text = console.export_text()
    for part in ("4,000 tokens, 1 stream", "37.5", "0.85 x", "missed", "met", "not measured"):
        assert (part in text) is (part != "missed"), part
    assert "| rotated 4 | 0.85 x |" in kv_report.markdown(result)


def test_the_json_file_says_it_all(result: KvReport, tmp_path: Path) -> None:
    kv_report.write(result, tmp_path / "kv.json")
    data = json.loads((tmp_path / "kv.json").read_text(encoding="utf-8"))
    assert data["schema"] == kv_report.KV_SCHEMA
    assert data["plan"]["variants"][0] == {"scheme": "affine", "bits": 2}
    decode = data["groups"][1]["metrics"][0]
    assert decode["rounds"] == [
        {"none": 50.0, "rotated 4": 40.0},
        {"none": 25.0, "rotated 4": 22.5},
    ]
    assert decode["ratio"]["rotated 4/none"] == pytest.approx(0.85)
    assert data["requirements"][0]["met"] is True


# -- a whole run ---------------------------------------------------------------------------------


class Counting:
    """Steps that nobody looks at."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self, step: str) -> None:
        self.count += 1

    def done(self, outcome: str) -> None:
        pass


def test_a_run_measures_everything(tmp_path: Path) -> None:
    model = tiny.save(tmp_path / "model")
    save_tiny(model, "llama", vocab_size=_vocab(model), head_dim=64)  # for groups of 64
    steps = Counting()
    groups = KvBench(TINY, model, tmp_path, steps).run()
    assert steps.count == count_kv_steps(TINY)
    names = ["quality", "bytes", "tokens", "memory", "decode", "prefill"]
    assert [group.name for group in groups] == names
    metrics = [metric for group in groups for metric in group.metrics]
    for metric in metrics:
        for variant in (PLAIN, ROTATED):
            assert metric.median(variant.name) is not None, metric.spec.name
    values = dict(_values(groups, ROTATED))
    assert values["kl"] > 0 and values["perplexity"] > 1
    assert values["bytes_off_float32"] == values["bytes_off_bfloat16"] == 0
    assert values["tokens_more_float32"] > 5
    assert values["peak_rebuild_plain"] < 0.5
    assert values["decode_70_2"] > 0 and values["prefill_80_1"] > 0
    plain = find(metrics, "kl")
    assert plain is not None and plain.median(PLAIN.name) == 0


def _vocab(model: Path) -> int:
    size: int = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    return size


def _values(groups: Sequence[Group], variant: Variant) -> Iterator[tuple[str, float]]:
    for group in groups:
        for metric in group.metrics:
            yield metric.spec.name, metric.median(variant.name) or 0.0


def test_a_wrong_option_is_one_line() -> None:
    command = [sys.executable, "-m", "scripts.benchmarks", "kv", "--only", "taste"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert f"known: {', '.join(MEASUREMENTS)}" in result.stderr
    assert "Traceback" not in result.stderr
