"""`omlx-server bench`: its arithmetic, and the whole against a server of others and ours."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from omlx_server.cli.bench import command, words
from omlx_server.cli.bench.measure import BenchPlan, ServerBench, deadlines, fitting_repeats
from omlx_server.cli.bench.result import (
    Figure,
    FigureGroup,
    Result,
    better_by,
    comparison_json,
    read_result,
    result_lines,
)
from omlx_server.cli.bench.target import BenchTarget, Stream, decode_rate, events, reply_of
from omlx_server.cli.bench.words import Scale, scale_of
from omlx_server.cli.server_client.http import server_at
from omlx_server.errors import OmlxError, UsageError
from tests.api.conftest import CHATML
from tests.api.harness import serving
from tests.cli.paced_server import PacedServer, paced
from tests.text import makers
from tests.tiny_models import save_tiny

ROOT = Path(__file__).parents[3]
SMALL = BenchPlan(seconds=30, repeats=2, lengths=(100, 200), streams=(1, 2), out_tokens=12, turns=3)
runner = CliRunner()


# --- Pure ----------------------------------------------------------------------------------------


def test_events_are_timed_by_the_piece_that_completes_them() -> None:
    pieces = [
        (1.0, b'data: {"a"'),
        (2.0, b': 1}\n\n: ping\n\ndata: {"b": 2}\n'),
        (3.0, b"\ndata: "),
    ]
    pieces += [(4.0, b"[DONE]\n\n")]
    assert list(events(pieces)) == [(2.0, {"a": 1}), (2.0, {"b": 2})]


def test_streams_are_rated_while_all_of_them_run() -> None:
    early = Stream(0.0, (1.0, 2.0, 3.0, 4.0), 4)
    late = Stream(0.0, (2.0, 3.0, 4.0, 5.0), 8)
    assert decode_rate([early, late]) == pytest.approx((2 + 4) / 2)
    assert decode_rate([early, Stream(4.0, (5.0, 6.0), 2)]) is None


def event(**delta: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


def test_a_reply_counts_thoughts_and_believes_the_server_on_tokens() -> None:
    usage = {"completion_tokens": 7, "prompt_tokens": 30}
    details = {"prompt_tokens_details": {"cached_tokens": 20}}
    last = json.dumps({"choices": [], "usage": usage | details}).encode()
    pieces = [(1.0, event(role="assistant")), (2.0, event(reasoning_content="hm"))]
    pieces += [(3.0, event(content="Hi")), (4.0, b"data: " + last + b"\n\n")]
    reply = reply_of(0.5, pieces)
    assert (reply.stream.ttft, reply.stream.last, reply.stream.tokens) == (1.5, 3.0, 7)
    assert (reply.prompt_tokens, reply.cached, reply.text) == (30, 20, "Hi")


def test_a_reply_tells_how_much_was_drafted() -> None:
    details = {"accepted_prediction_tokens": 7, "rejected_prediction_tokens": 2}
    usage = {"completion_tokens": 9, "completion_tokens_details": details}
    last = f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode()
    assert reply_of(0.0, [(1.0, event(content="a")), (2.0, last)]).drafted == 7
    assert reply_of(0.0, [(1.0, event(content="a"))]).drafted is None


def test_a_reply_of_a_server_that_counts_nothing() -> None:
    reply = reply_of(0.0, [(1.0, event(content="a")), (2.0, event(content="b"))])
    assert (reply.stream.tokens, reply.prompt_tokens, reply.cached) == (2, 0, None)
    assert reply_of(0.0, [(3.0, b'data: {"choices": []}\n\n')]).stream.ttft == 3.0
    with pytest.raises(OmlxError, match="fell over"):
        reply_of(0.0, [(1.0, b'data: {"error": {"message": "it fell over"}}\n\n')])


def test_the_length_of_prompts_is_learnt() -> None:
    assert scale_of(20, 70, 100, 230) == Scale(fixed=30.0, per_word=2.0)
    assert Scale(30.0, 2.0).words(130) == 50
    assert Scale(30.0, 2.0).words(10) == 1
    assert scale_of(20, 0, 100, 0) == Scale()


def test_no_prompt_comes_twice() -> None:
    prompts = [words.new_prompt(5)[0]["content"] for _ in range(20)]
    assert len({prompt.split()[0] for prompt in prompts}) == 20


def test_the_time_is_shared_out() -> None:
    assert deadlines(10.0, 60.0, 0.5, 0.25) == [40.0, 55.0, 70.0]
    assert fitting_repeats(6.0, cost=2.5, most=5) == 2
    assert fitting_repeats(6.0, cost=0.0, most=5) == 5
    assert fitting_repeats(-1.0, cost=1.0, most=5) == 0


# --- Results -------------------------------------------------------------------------------------


def result_of(*figures: Figure, model: str = "m") -> Result:
    return Result("http://x", model, "version 1", "2026-01-01", 60.0, figures, ("a note",))


OLD = result_of(
    Figure(FigureGroup.COLD, 100, (2.0, 2.1, 2.2), 101, 0),
    Figure(FigureGroup.DECODE, 4, (10.0, 11.0)),
    Figure(FigureGroup.TURN, 1, (1.0,), 50, None),
)
NEW = result_of(
    Figure(FigureGroup.COLD, 100, (1.0, 1.05, 1.1), 101, 0),
    Figure(FigureGroup.DECODE, 4, (10.5, 31.0), drafted=0.375),
    Figure(FigureGroup.WARM, 100, (0.1,), 101, 100),
)


def test_better_is_above_one_for_times_and_for_rates() -> None:
    gain = better_by(NEW.figures[0], OLD.figures[0])
    assert gain.is_clear
    assert gain.ratio == pytest.approx(2.0)
    gain = better_by(NEW.figures[1], OLD.figures[1])
    assert not gain.is_clear
    assert gain.ratio == pytest.approx(20.75 / 10.5)
    assert set(comparison_json(NEW, OLD)["better_by"]) == {"ttft_cold_100", "decode_4"}


def test_a_result_comes_back_from_its_json(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(json.dumps(OLD.as_json()))
    assert read_result(file) == OLD
    assert OLD.as_json()["figures"][0]["median"] == 2.1


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 99}', json.dumps(OLD.as_json() | {"figures": [{}]})]
)
def test_what_is_no_result_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="is no result of"):
        read_result(file)


def test_the_table_tells_the_spread_and_what_is_clear() -> None:
    text = "\n".join(result_lines(NEW, OLD))
    cold, warm, decode = (x for x in text.splitlines() if x.startswith("  "))
    assert cold.split() == ["100", "tokens", "1.050", "1.000", "1.100", "0/101", "2.00x"]
    assert warm.split() == ["100", "tokens", "0.100", "-", "-", "100/101", "-"]
    assert decode.endswith("38 %       1.98x  (within the spread)")
    assert text.endswith("note: a note")


# --- Against a server ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other() -> Iterator[PacedServer]:
    with paced() as server:
        yield server


def measured(
    server: PacedServer, plan: BenchPlan, tell: Callable[[str, int, int], None] = lambda *_: None
) -> tuple[dict[str, Figure], list[str]]:
    async def run() -> tuple[dict[str, Figure], list[str]]:
        async with BenchTarget(server_at(server.url, ""), "paced") as target:
            bench = ServerBench(target, plan, tell)
            return {figure.name: figure for figure in await bench.run()}, bench.notes

    return asyncio.run(run())


def test_it_finds_the_speeds_of_a_server() -> None:
    with paced(read=0.0005, write=0.004) as server:
        found, notes = measured(server, SMALL)
    assert notes == []
    cold, warm = found["ttft_cold_200"], found["ttft_warm_200"]
    assert len(cold.values) == 2
    assert 180 <= cold.prompt_tokens <= 220
    # Never quicker than the server is; slower on a busy machine.
    assert min(cold.values) >= 0.0005 * cold.prompt_tokens
    assert warm.median < cold.median
    assert (cold.cached_tokens, warm.cached_tokens) == (0, warm.prompt_tokens - 1)
    assert 20 < max(found["decode_1"].values) <= 1 / 0.004
    assert max(found["decode_2"].values) > max(found["decode_1"].values)
    turns = [found[f"ttft_turn_{i}"] for i in (1, 2, 3)]
    assert turns[0].cached_tokens == 0
    assert turns[2].cached_tokens == pytest.approx(turns[2].prompt_tokens, abs=45)


def test_every_prompt_that_should_be_cold_is() -> None:
    with paced() as server:
        measured(server, SMALL)
        asked = [json.dumps(body["messages"]) for body in server.behaviour.asked]
        # Only a second look at a first token repeats what was asked.
        assert len(asked) - len(set(asked)) == SMALL.repeats * len(SMALL.lengths)
        assert all(body["temperature"] == 0 for body in server.behaviour.asked)


def test_a_server_that_refuses_our_field_is_asked_without() -> None:
    with paced(takes_ignore_eos=False) as server:
        found, notes = measured(server, SMALL)
        refused = [body for body in server.behaviour.asked if "ignore_eos" in body]
    assert len(refused) == 1
    assert "decode_2" in found
    assert any("ignore_eos" in note for note in notes)


def test_a_slow_server_is_asked_less() -> None:
    with paced(read=0.001, write=0.01) as server:
        plan = BenchPlan(seconds=1.5, lengths=(100, 400, 4000), streams=(1, 2), out_tokens=64)
        found, notes = measured(server, plan)
    assert "ttft_cold_100" in found
    assert "ttft_cold_4000" not in found
    assert any("4000 tokens and more" in note or "400 tokens and more" in note for note in notes)
    assert server.behaviour.asked[-1]["max_tokens"] == plan.turn_out
    decoded = {body["max_tokens"] for body in server.behaviour.asked} - {1, plan.turn_out}
    assert max(decoded) < plan.out_tokens


def test_a_short_context_ends_the_lengths() -> None:
    with paced(context=150) as server:
        plan = BenchPlan(seconds=20, repeats=1, lengths=(100, 200), turns=1, turn_tokens=90)
        found, notes = measured(server, plan)
    assert "ttft_cold_100" in found
    assert "ttft_cold_200" not in found
    assert notes == ["the model's context is too short for 200 tokens"]


def test_streams_that_wait_for_each_other_are_not_rated() -> None:
    with paced(at_once=1) as server:
        found, notes = measured(server, SMALL)
    assert "decode_1" in found
    assert "decode_2" not in found
    assert any(note.startswith("2 streams never ran together") for note in notes)


def test_a_server_that_counts_nothing_is_measured_too() -> None:
    with paced(counts=False) as server:
        found, _ = measured(server, SMALL)
    assert found["ttft_cold_100"].prompt_tokens == 0
    assert found["ttft_warm_100"].cached_tokens is None
    assert found["decode_1"].median > 0


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    with paced() as server:
        measured(server, SMALL, lambda *what: told.append(what))
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages == ["warm up", "first tokens", "decoding", "turns"]
    assert all(done <= total for _, done, total in told)


# --- The command ---------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    run = command.run
    monkeypatch.setattr(command, "run", lambda **said: run(**said, plan=SMALL))


def bench(*arguments: str) -> Any:
    return runner.invoke(app, ["bench", *arguments])


@pytest.mark.usefixtures("small")
def test_json_plot_and_comparison(other: PacedServer, tmp_path: Path) -> None:
    before, picture = tmp_path / "before.json", tmp_path / "bench.png"
    first = bench("--url", f"{other.url}/v1", "--json", "--model", "other")
    assert first.exit_code == 0, first.output
    said = json.loads(first.stdout)
    assert (said["model"], said["url"]) == ("other", other.url)
    before.write_text(first.stdout)
    second = bench("--url", other.url, "--against", str(before), "--plot", str(picture))
    assert second.exit_code == 0, second.output
    assert second.stdout.startswith(f"paced at {other.url} (version unknown)")
    assert "better by" in second.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    third = bench("--url", other.url, "--against", str(before), "--json")
    gains = json.loads(third.stdout)["against"]["better_by"]
    assert set(gains) == {figure["name"] for figure in said["figures"]}


@pytest.mark.usefixtures("small")
def test_a_key_goes_where_it_was_given_for(
    other: PacedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_AUTH__API_KEYS", "own")
    other.behaviour.headers.clear()
    bench("--url", other.url)
    assert set(other.behaviour.headers) == {""}
    other.behaviour.headers.clear()
    bench("--url", other.url, "--api-key", "theirs")
    assert set(other.behaviour.headers) == {"Bearer theirs"}


def test_without_a_server_it_says_how_to_start_one() -> None:
    done = bench("--url", "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert done.stderr == (
        "error: no server answers at http://127.0.0.1:9\n"
        "hint: start one with `omlx-server up`, or name another with --url\n"
    )


def test_what_would_fail_at_the_end_fails_at_once(other: PacedServer, tmp_path: Path) -> None:
    asked = len(other.behaviour.asked)
    for arguments in (
        ("--against", str(tmp_path / "none.json")),
        ("--plot", str(tmp_path / "none" / "x.png")),
    ):
        done = bench("--url", other.url, *arguments)
        assert done.exit_code == 2
        assert done.stderr.startswith("error: ")
    assert len(other.behaviour.asked) == asked


@pytest.mark.usefixtures("small")
def test_a_picture_that_can_not_be_written_leaves_one_document(
    other: PacedServer, tmp_path: Path
) -> None:
    done = bench("--url", other.url, "--json", "--plot", str(tmp_path))
    assert done.exit_code == 1
    assert "can't be written" in json.loads(done.stdout)["error"]["message"]


def test_a_plot_without_matplotlib(
    other: PacedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "omlx_server.cli.bench.plot", raising=False)
    done = bench("--url", other.url, "--plot", str(tmp_path / "x.png"))
    assert done.exit_code == 2
    assert done.stderr.startswith(
        "error: --plot needs matplotlib\nhint: uv tool install '.[bench]'"
    )


@pytest.mark.usefixtures("small")
def test_a_server_that_sends_its_answers_whole_has_no_rate(server_url: str) -> None:
    done = bench("--url", server_url)
    assert done.exit_code == 0, done.output
    assert "first token, new prompt" in done.stdout
    assert "decoding" not in done.stdout
    assert "note: 1 streams never ran together" in done.stdout


def test_no_mlx_is_imported() -> None:
    code = (
        "import sys; import omlx_server.cli.bench.command; "
        "print({m.split('.')[0] for m in sys.modules} & {'mlx', 'matplotlib', 'transformers'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_our_own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    path = makers.save(tmp_path / "models" / "tiny", "byte_level", CHATML)
    save_tiny(path, "llama", vocab_size=vocab)
    sets = [f"models.dirs={tmp_path / 'models'}", "memory.activation_reserve=64MB"]
    plan = BenchPlan(seconds=6, repeats=1, lengths=(1500,), streams=(1, 2), turn_tokens=600)
    run = command.run
    monkeypatch.setattr(command, "run", lambda **said: run(**said, plan=plan))
    with serving("tiny", tmp_path, *sets) as server:
        done = bench("--url", server.url, "--json")
    assert done.exit_code == 0, done.output
    found = {figure["name"]: figure for figure in json.loads(done.stdout)["figures"]}
    assert found["ttft_cold_1500"]["prompt_tokens"] == pytest.approx(1500, rel=0.15)
    assert found["ttft_cold_1500"]["cached_tokens"] < 64
    assert found["ttft_warm_1500"]["cached_tokens"] > 1000
    assert found["ttft_turn_2"]["cached_tokens"] > 400
    assert {"decode_1", "decode_2"} <= set(found)


def test_ctrl_c_ends_it_quietly() -> None:
    with paced(write=0.05) as server:
        command_line = [sys.executable, "-m", "omlx_server", "bench", "--url", server.url]
        with subprocess.Popen(
            command_line,
            cwd=ROOT,
            env=os.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stderr
            timer = threading.Timer(30, running.kill)
            timer.start()
            running.stderr.readline()
            running.send_signal(2)
            out, err = running.communicate()
            timer.cancel()
    assert running.returncode == 130
    assert out == ""
    assert all(line.endswith("%") for line in err.splitlines())
