"""scripts/bench: its arithmetic, its files, and one run of it on one-layer models."""

import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from omlx_server.cli.bench.target import Stream, decode_rate
from omlx_server.core.blocks.keys import shared
from scripts.benchmarks import __main__ as command
from scripts.benchmarks import cache_quantities, plot, quantities, report, table, tiny
from scripts.benchmarks.answer import Answer, distinct
from scripts.benchmarks.measure import Bench, count_steps
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, collect, find
from scripts.benchmarks.plan import QUICK, Plan
from scripts.benchmarks.process import Child, ChildFailed
from scripts.benchmarks.prompts import QUESTIONS, PromptMaker
from scripts.benchmarks.response import BadResponse, Response
from scripts.benchmarks.timeline import Run, gaps, percentile, total_rate
from scripts.benchmarks.workload import Prompt

ROOT = Path(__file__).parent.parent
SPEED = Spec("speed", "speed", "tok/s", Better.HIGHER)
WAIT = Spec("wait", "wait", "ms", Better.LOWER)

TINY = replace(
    QUICK,
    streams=(1, 2),
    prompt_tokens=120,
    ttft_tokens=130,
    long_tokens=300,
    running_streams=2,
    running_out=500,  # so many take a moment even on this model
    cold_out=200,  # so that streams are there at the same time
    chunk_tokens=128,
    host_streams=2,
    host_out=8,
    repeat_tokens=300,
    shared_tokens=150,
    turns_tokens=500,
    together=3,
    prefix_tokens=200,
)


# -- times ---------------------------------------------------------------------------------------


def test_the_total_rate_runs_from_the_first_request_to_the_last_token() -> None:
    run = Run((Stream(0.0, (1.0, 2.0), 2), Stream(0.5, (3.0, 4.0), 2)))
    assert total_rate(run) == 1.0


def test_the_decode_rate_counts_only_while_all_streams_decode() -> None:
    early = Stream(0.0, (1.0, 2.0, 3.0, 4.0), 4)
    late = Stream(0.0, (2.0, 3.0, 4.0, 5.0), 4)
    # From 2 (excluded) to 4: two tokens of each.
    assert decode_rate((early, late)) == pytest.approx(4 / 2)


def test_an_event_may_stand_for_several_tokens() -> None:
    assert decode_rate((Stream(0.0, (1.0, 2.0, 3.0), 6),)) == pytest.approx(4 / 2)


def test_streams_that_never_decode_together_have_no_decode_rate() -> None:
    assert decode_rate((Stream(0.0, (1.0, 2.0), 2), Stream(0.0, (3.0, 4.0), 2))) is None


def test_gaps_are_those_that_touch_the_reading_of_the_late_prompt() -> None:
    running = Stream(0.0, (1.0, 2.0, 5.0, 6.0, 7.0), 5)
    run = Run((running,), late=Stream(2.5, (5.5,), 1))
    assert gaps(run) == [3.0, 1.0]  # 2 to 5 and 5 to 6


def test_an_answer_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="without a token"):
        Stream(0.0, (), 0)


def test_percentiles_are_linear_between_neighbours() -> None:
    values = [40.0, 10.0, 20.0, 30.0]
    assert [percentile(values, p) for p in (0, 50, 100)] == [10.0, 25.0, 40.0]


# -- rounds --------------------------------------------------------------------------------------


def test_a_ratio_is_taken_within_a_round() -> None:
    """The machine was four times slower in the second round: the ratio must not see it."""
    metric = Metric(SPEED, ({"ours": 90.0, "bare": 100.0}, {"ours": 22.5, "bare": 25.0}))
    assert metric.ratio("ours", "bare") == pytest.approx(0.9)
    assert metric.median("ours") == pytest.approx(56.25)


def test_what_was_not_measured_has_no_median_and_no_ratio() -> None:
    metric = Metric(SPEED, ({"ours": 1.0}, {"ours": 2.0, "bare": 4.0}))
    assert metric.ratio("ours", "bare") == 0.5
    assert metric.ratio("ours", "mlx_lm") is None
    assert metric.median("mlx_lm") is None


def test_samples_are_collected_by_round() -> None:
    rounds = [[Sample(SPEED, "ours", 1.0), Sample(WAIT, "ours", 5.0)], [Sample(SPEED, "ours", 2.0)]]
    speed, wait = collect(rounds)
    assert speed.rounds == ({"ours": 1.0}, {"ours": 2.0})
    assert wait.rounds == ({"ours": 5.0}, {})


def test_a_requirement_knows_whether_it_is_met() -> None:
    assert Requirement("fast", 0.95, 0.95, Better.HIGHER).met is True
    assert Requirement("fast", 0.94, 0.95, Better.HIGHER).met is False
    assert Requirement("calm", 2.1, 2.0, Better.LOWER).met is False
    assert Requirement("unknown", None, 2.0, Better.LOWER).met is None


def test_quantities_follow_from_runs() -> None:
    one = Run((Stream(0.0, (1.0, 2.0), 2),))
    two = Run((Stream(0.0, (1.0, 2.0), 2), Stream(0.0, (1.0, 2.0), 2)))
    samples = quantities.throughput({1: {"ours": one}, 2: {"ours": two}})
    assert {s.spec.name: s.value for s in samples} == {
        "total_1": 1.0,
        "total_2": 2.0,
        "decode_1": 1.0,
        "decode_2": 2.0,
        "decode_gain": 2.0,
        "ttft_2": 1000.0,
    }


def test_host_time_is_what_comes_on_top_of_the_bare_loop() -> None:
    bare = Run((Stream(0.0, (1.0, 2.0), 2),), cpu_seconds=1.0)
    ours = Run((Stream(0.0, (1.0, 3.0), 2),), cpu_seconds=1.5)
    samples = {
        (s.spec.name, s.system): s.value for s in quantities.host({"ours": ours, "bare": bare})
    }
    assert samples["added_wall", "ours"] == pytest.approx(0.5e6)
    assert samples["added_cpu", "ours"] == pytest.approx(0.25e6)


# -- what a cache is worth -----------------------------------------------------------------------


def answer(tokens: tuple[int, ...], *times: float, cached: int | None = None) -> Answer:
    return Answer(Prompt((), tokens), Stream(0.0, times, len(times)), "text", cached)


def values(samples: Iterable[Sample]) -> dict[str, float]:
    return {sample.spec.name: sample.value for sample in samples}


def test_distinct_tokens_are_those_of_the_tree_of_prompts() -> None:
    prompts = [(1, 2, 3, 4), (1, 2, 5), (1, 2, 3, 4), (1, 2, 3, 6, 7)]
    prefixes = {prompt[:length] for prompt in prompts for length in range(1, len(prompt) + 1)}
    assert distinct(prompts) == len(prefixes) == 7
    assert shared((1, 2, 3), (1, 2)) == shared((1, 2), (1, 2, 3)) == 2


def test_a_prompt_asked_again_is_compared_with_a_step_of_its_own_answer() -> None:
    cold = answer((0,) * 9, 8.0, 8.5, cached=0)
    warm = [answer((0,) * 9, first, first + 0.5, cached=8) for first in (0.5, 0.75, 4.0)]
    assert values(cache_quantities.repeat({"ours": [cold, *warm]})) == {
        "repeat_cold": 8000.0,
        "repeat_warm": 750.0,
        "repeat_ratio": 0.75 / 8,
        "repeat_steps": 1.5,
        "repeat_computed": 1,
    }


def test_the_rest_of_a_half_known_prompt_begins_where_the_tokens_differ() -> None:
    known = Prompt((), (1, 2, 3, 4))
    asked = {"ours": [answer((1, 2, 5, 6), 1.0, cached=1)]}
    assert values(cache_quantities.partial(asked, known)) == {
        "partial_ttft": 1000.0,
        "partial_computed": 3,
        "partial_extra": 1,
    }


def test_new_in_a_turn_is_neither_of_the_prompt_before_nor_of_its_answer() -> None:
    first = answer((0,) * 10, 1.0, 2.0, cached=0)
    second = answer((0,) * 20, 0.5, cached=11)  # 10 + 2 were there, so 8 are new; 9 computed
    assert values(cache_quantities.turns({"ours": [first, second]})) == {
        "turns_ttft": 1.5,
        "turns_ratio": 19 / 18,
        "turns_extra": 1,
    }


def test_requests_at_once_are_timed_to_the_last_of_them() -> None:
    asked = {"ours": [answer((1, 2, 3), 1.0, 3.0, cached=0), answer((1, 2, 4), 2.0, cached=2)]}
    assert values(cache_quantities.together(asked)) == {
        "together_wall": 3.0,
        "together_ttft": 1.5,
        "together_ratio": 1.0,
    }


def test_a_server_that_does_not_tell_of_its_cache_is_still_timed() -> None:
    mute = [answer((1, 2), 1.0), answer((1, 2), 0.5)]
    assert values(cache_quantities.together({"mlx_lm": mute})).keys() == {
        "together_wall",
        "together_ttft",
    }
    assert "repeat_computed" not in values(cache_quantities.repeat({"mlx_lm": mute}))


def test_only_the_full_load_is_held_to_a_fifth_of_the_time_of_the_peer() -> None:
    wall = Spec("together_wall", "wall", "s", Better.LOWER)
    metrics = [Metric(wall, ({"ours": 3.0, "mlx_lm": 10.0},))]
    full, quick = (cache_quantities.requirements(metrics, plan)[-1] for plan in (Plan(), QUICK))
    assert (full.value, full.met) == (0.3, False)
    assert quick.met is None


# -- responses -----------------------------------------------------------------------------------


def event(content: str | None = None, finish: str | None = None, **more: object) -> bytes:
    choice = {"delta": {"content": content} if content else {}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


def usage(prompt: int, completion: int, **more: object) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


def response(*pieces: tuple[float, bytes], prompt_tokens: int = 3) -> Response:
    prompt = Prompt(({"role": "user", "content": "hi"},), (0,) * prompt_tokens)
    return Response(prompt, sent=0.5, pieces=list(pieces))


def test_an_event_counts_when_its_last_piece_has_come() -> None:
    first, second = event("a"), event("b", usage=None)
    pieces = ((1.0, b": keepalive\n\n" + first[:9]), (2.0, first[9:] + second), (3.0, usage(3, 2)))
    assert response(*pieces).answer().stream == Stream(0.5, (2.0, 2.0), 2)


def test_an_answer_without_text_is_timed_by_its_end() -> None:
    answer = response((1.0, event()), (2.0, event(finish="stop") + usage(3, 1) + b"data: [DONE]"))
    assert answer.answer().stream == Stream(0.5, (2.0,), 1)


def test_a_server_that_read_another_prompt_is_not_compared() -> None:
    with pytest.raises(BadResponse, match="has 4 tokens, the server read 3"):
        response((1.0, event("a") + usage(3, 1)), prompt_tokens=4).answer()


def test_an_error_event_is_no_answer() -> None:
    with pytest.raises(BadResponse, match="boom"):
        response((1.0, b'data: {"error": {"message": "boom"}}\n\n')).answer()


def test_an_answer_tells_its_text_and_what_was_cached() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 2}}
    answer = response((1.0, event("a") + event("b") + usage(3, 2, **details))).answer()
    assert (answer.text, answer.cached, answer.computed) == ("ab", 2, 1)
    silent = response((1.0, event("a") + usage(3, 1, prompt_tokens_details=None))).answer()
    assert (silent.cached, silent.computed) == (None, None)


# -- the result ----------------------------------------------------------------------------------


@pytest.fixture
def result() -> report.Report:
    total = replace(SPEED, name="total_8", title="output, 8 streams")
    ttft = replace(WAIT, name="ttft")
    metrics = [
        Metric(total, ({"ours": 48.0, "bare": 50.0},)),
        Metric(ttft, ({"ours": 2000.0, "bare": 2500.0, "mlx_lm": 2600.0},)),
    ]
    return report.Report(
        created=datetime(2026, 1, 2, tzinfo=UTC),
        machine={"device": "CPU"},
        model="starter",
        plan=Plan(repeats=1),
        metrics=metrics,
        requirements=quantities.requirements(metrics, Plan()),
    )


def test_the_json_file_says_it_all(result: report.Report, tmp_path: Path) -> None:
    report.write(result, tmp_path / "bench.json")
    data = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert data["schema"] == report.SCHEMA
    assert data["created"] == "2026-01-02T00:00:00+00:00"
    assert data["plan"]["prompt_tokens"] == 165
    assert list(data["systems"]) == ["ours", "bare", "mlx_lm"]
    assert data["metrics"][0] == {
        "name": "total_8",
        "title": "output, 8 streams",
        "unit": "tok/s",
        "better": "higher",
        "rounds": [{"ours": 48.0, "bare": 50.0}],
        "median": {"ours": 48.0, "bare": 50.0, "mlx_lm": None},
        "ratio": {"ours/bare": 0.96, "ours/mlx_lm": None},
    }
    assert [r["met"] for r in data["requirements"]] == [True, None, None, *[None] * 7]


def test_the_table_shows_medians_ratios_and_verdicts(result: report.Report) -> None:
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(table.tables(result))
    text = console.export_text()
    for part in ("omlx_server", "bare batch", "mlx_lm.server", "2,500", "0.96", "met"):
        assert part in text


def test_the_plot_is_a_png(result: report.Report, tmp_path: Path) -> None:
    plot.save(result, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


# -- processes -----------------------------------------------------------------------------------


def child(code: str, log: Path) -> Child:
    return Child([sys.executable, "-c", code], os.environ, log)


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def ending(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal; what it does now is put back."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda number, frame: None) for number in numbers]
    yield request.param
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_closed_terminal_ends_what_was_started(
    ending: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may tell twice; under nohup it is not heard."""
    ended = []

    def measure(prog_name: str) -> None:
        try:
            signal.raise_signal(ending)
        finally:
            signal.raise_signal(signal.SIGHUP)
            ended.append(prog_name)

    monkeypatch.setattr(command, "app", measure)
    with pytest.raises(SystemExit) as ended_by:
        command.main()
    assert (ended_by.value.code, len(ended)) == (128 + ending, 1)
    command.main()  # both are ignored by now


def test_a_child_that_does_not_hear_sigterm_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.benchmarks.process._GRACE_SECONDS", 0.2)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    deaf = child(f"{code}; print('deaf', flush=True); time.sleep(600)", tmp_path / "deaf.log")
    try:
        while "deaf" not in deaf.output():
            time.sleep(0.01)
    finally:
        deaf.end()
    with pytest.raises(ChildFailed, match="exit code -9"):
        deaf.check_alive()


def test_a_failure_shows_the_last_words(tmp_path: Path) -> None:
    failing = child("raise SystemExit('no such model')", tmp_path / "server.log")
    failing._process.wait()
    with pytest.raises(ChildFailed, match=r"server ended with exit code 1(.|\n)*no such model"):
        failing.check_alive()


# -- prompts and a whole run ---------------------------------------------------------------------


def test_prompts_have_the_exact_length_and_differ_early(tmp_path: Path) -> None:
    maker = PromptMaker(tiny.save(tmp_path / "model"))
    prompts = maker.make(4, 150, "seed")
    assert [len(prompt.tokens) for prompt in prompts] == [150] * 4
    assert len({prompt.tokens[:20] for prompt in prompts}) == 4
    assert maker.make(4, 150, "seed") == prompts


def test_prompts_for_the_cache_share_what_they_should(tmp_path: Path) -> None:
    maker = PromptMaker(tiny.save(tmp_path / "model"))
    known = maker.document(300, "nonce", QUESTIONS[0])
    half = maker.diverge(known, 150, QUESTIONS[0])
    assert known.messages[0]["content"].startswith("nonce ")
    assert {len(known.tokens), len(half.tokens)} == {300}
    assert 150 - 12 < shared(known.tokens, half.tokens) <= 150  # no word has twelve letters
    turn = maker.turn((*known.messages, {"role": "assistant", "content": "Well"}), 400, "s", "Why?")
    assert len(turn.tokens) == 400
    assert shared(turn.tokens, known.tokens) == 300
    questions = [maker.about(known, question).tokens for question in QUESTIONS]
    starts = {shared(one, other) for one, other in itertools.combinations(questions, 2)}
    assert len(starts) == 1  # they differ from their first token on


def test_a_run_measures_everything_beside_the_bare_loop(tmp_path: Path) -> None:
    steps = Counting()
    model = tiny.save(tmp_path / "model")
    metrics = Bench(TINY, model, tmp_path, peers=(), steps=steps).run()
    assert steps.count == count_steps(TINY, ())
    for name in (
        "total_1",
        "total_2",
        "ttft",
        "gap_max",
        "chunk",
        "together_wall",
        "cold_again",
        "cold_read",
        "cold_written",
        "cold_decode",
        "host_wall",
        "peak_rss",
    ):
        metric = find(metrics, name)
        assert metric is not None and (metric.median("ours") or 0) > 0, name
    bounds = {"repeat_computed": 1, "partial_extra": 0, "turns_extra": 2, "together_ratio": 1.2}
    for name, bound in bounds.items():
        metric = find(metrics, name)
        assert metric is not None and (metric.median("ours") or 0) <= bound, name
    assert {"bare", "ours"} == {name for m in metrics for values in m.rounds for name in values}


class Counting:
    """Steps that nobody looks at."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self, step: str) -> None:
        self.count += 1

    def done(self, outcome: str) -> None:
        pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "speed"], "known: throughput, ttft, gap, cache, cold, host"),
        (["--peers", "llama"], "some of mlx_lm, vllm_mlx, llama_cpp, or all, or none"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "scripts.benchmarks", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
