"""scripts/bench --peers: who is asked for, how they are installed and started, what is shown."""

import io
import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from omlx_server.cli.bench.target import Stream
from omlx_server.errors import UsageError
from scripts.benchmarks import (
    markdown,
    peer_environment,
    peers,
    plot,
    quantities,
    report,
    table,
    tiny,
)
from scripts.benchmarks.http_system import HttpSystem
from scripts.benchmarks.measure import count_steps
from scripts.benchmarks.metrics import SYSTEMS, Better, Metric, Spec
from scripts.benchmarks.peer_servers import Launch
from scripts.benchmarks.plan import QUICK, Plan
from scripts.benchmarks.process import Child
from scripts.benchmarks.prompts import PromptMaker
from scripts.benchmarks.timeline import Run
from scripts.benchmarks.traffic import Endpoint
from scripts.benchmarks.workload import Prompt, Workload

ROOT = Path(__file__).parent.parent

# -- who is asked for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("mlx_lm", ["mlx_lm"]),
        ("llama_cpp, mlx_lm", ["mlx_lm", "llama_cpp"]),
        ("all", ["mlx_lm", "vllm_mlx", "llama_cpp"]),
        ("none", []),
    ],
)
def test_peers_are_chosen_by_name(words: str, names: list[str]) -> None:
    assert [peer.name for peer in peers.choose(words)] == names


@pytest.mark.parametrize("words", ["llama", "mlx_lm,none", "mlx_lm,all", ""])
def test_a_peer_that_is_unknown_is_refused(words: str) -> None:
    with pytest.raises(UsageError, match="there is no peer"):
        peers.choose(words)


def test_every_peer_has_a_column() -> None:
    assert set(peers.NAMES) == SYSTEMS.keys() - {"ours", "bare"}


def test_a_peer_without_the_weights_of_a_model_is_refused_for_it(tmp_path: Path) -> None:
    peers.check_model(peers.PEERS, tmp_path / "SmolLM2-135M-Instruct-f32")
    with pytest.raises(UsageError, match="the starter model only, not qwen") as caught:
        peers.check_model(peers.PEERS, tmp_path / "qwen")
    assert caught.value.hint == "--peers mlx_lm,vllm_mlx"
    peers.check_model(peers.choose("mlx_lm,vllm_mlx"), tmp_path / "qwen")


def test_a_step_is_counted_for_each_peer_that_can_take_it() -> None:
    host = replace(QUICK, only=("host",))
    both = peers.choose("mlx_lm,llama_cpp")
    assert count_steps(host, both) - count_steps(host, ()) == 1  # no GGUF of the one-layer model
    ttft = replace(QUICK, only=("ttft",))
    assert count_steps(ttft, both) - count_steps(ttft, ()) == 2


def test_a_slot_has_room_for_the_longest_sequence() -> None:
    assert Plan().longest == 2000 + 16
    assert replace(Plan(), long_tokens=5000).longest == 5001
    assert replace(Plan(), prefix_tokens=9000).longest > 9000 + 16


# -- servers -------------------------------------------------------------------------------------


def is_there(peer: peers.Peer) -> bool:
    """Those of our own environment are; others only where somebody has measured with them."""
    return peer.pins is None or peer_environment.program(peer.pins, "python").exists()


@pytest.mark.parametrize("peer", [p for p in peers.PEERS if not p.only_gguf], ids=lambda p: p.name)
def test_a_peer_answers_as_it_is_asked(peer: peers.Peer, tmp_path: Path) -> None:
    if not is_there(peer):
        pytest.skip(f"{peer.name} is not installed")
    model = tiny.save(tmp_path / "model")
    server = peer.start(Launch(model, tmp_path, 512))
    try:
        server.wait_until_ready()
        prompts = PromptMaker(model).make(2, 120, peer.name)
        run = server.run(Workload(prompts, 6))
    finally:
        server.child.end()
    assert [stream.tokens for stream in run.streams] == [6, 6]
    assert not run.cut_short


STUB = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        one = {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
        for event in (one, one, usage):
            self.wfile.write(f"data: {json.dumps(event)}\\n\\n".encode())

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_an_answer_that_ends_early_is_noticed(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", STUB], os.environ, tmp_path / "stub.log")
    prompt = Prompt(({"role": "user", "content": "hi"},), (1, 2, 3))

    def find(child: Child) -> Endpoint | None:
        port = child.output().strip()
        return Endpoint(f"http://127.0.0.1:{port}", "stub") if port.isdigit() else None

    server = HttpSystem("vllm_mlx", child, find)
    try:
        server.wait_until_ready()
        assert not server.run(Workload((prompt,), 2)).cut_short
        assert server.run(Workload((prompt,), 3)).cut_short
        assert not server.run(Workload((prompt,), 3, may_end=True)).cut_short
    finally:
        child.end()


def test_what_was_cut_short_has_no_rate() -> None:
    whole = Run((Stream(0.0, (1.0, 2.0, 3.0), 3),), late=Stream(1.5, (2.5,), 1), cpu_seconds=1.0)
    runs = {"ours": whole, "vllm_mlx": replace(whole, cut_short=True)}
    throughput = list(quantities.throughput({1: runs}))
    assert {s.spec.name for s in throughput if s.system == "vllm_mlx"} == {"ttft_1"}
    gaps = [s for s in quantities.gap(runs, 1.0) if s.system != "ours"]
    assert gaps == [s for s in quantities.host(runs) if s.system != "ours"] == []


# -- what is shown -------------------------------------------------------------------------------


def metric(name: str, better: Better, **values: float) -> Metric:
    return Metric(Spec(name, name.replace("_", " "), "ms", better), (values,))


@pytest.fixture
def result() -> report.Report:
    metrics = [
        metric("total_8", Better.HIGHER, ours=50.0, bare=52.0, mlx_lm=25.0, llama_cpp=100.0),
        metric("repeat_warm", Better.LOWER, ours=100.0, mlx_lm=400.0, vllm_mlx=12_345.0),
    ]
    machine = {**report.describe_machine("CPU"), **peers.versions(peers.PEERS)}
    return report.Report(
        created=datetime(2026, 1, 2, tzinfo=UTC),
        machine=machine,
        model="starter",
        plan=Plan(repeats=1),
        metrics=metrics,
        requirements=[],
    )


def shown(result: report.Report, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(table.tables(result))
    return console.export_text().splitlines()


def test_each_system_has_its_value_and_the_ratio_to_ours(result: report.Report) -> None:
    lines = [line.split() for line in shown(result, 120)]
    assert ["total", "8", "ms", "↑", "50", "52", "0.96", "25", "2.00", "–", "100", "0.50"] in lines
    again = ["100", "–", "400", "0.25", "12,345", "0.01", "–"]
    assert ["repeat", "warm", "ms", "↓", *again] in lines


def test_five_systems_fit_into_120_columns(result: report.Report) -> None:
    title = "  half known, computed beyond the rest"
    values = metric(title, Better.LOWER, **dict.fromkeys(SYSTEMS, 10_000.0))
    lines = shown(replace(result, metrics=[values]), 120)
    (line,) = (line for line in lines if title in line)
    assert line.split()[-9:] == ["10,000", *["10,000", "1.00"] * 4]
    assert len(line) <= 120
    small = metric("small", Better.LOWER, **{**dict.fromkeys(SYSTEMS, 0.00768), "ours": 0.0412})
    (line,) = (line for line in shown(replace(result, metrics=[small]), 120) if "small" in line)
    assert line.split()[-9:] == ["0.0412", *["0.00768", "5.36"] * 4]


def test_the_markdown_table_says_how_many_times_as_good_ours_is(result: report.Report) -> None:
    header, _, output, again, *rest = markdown.ratios(result).splitlines()
    assert header.split(" | ")[2:] == [
        f"against mlx_lm.server {result.machine['mlx_lm']}",
        "against vllm-mlx 0.6.0",
        "against llama.cpp Q4_1 0.5.0-dev |",
    ]
    assert output == (
        "| output of 8 streams, 165 tokens in, 32 out each, tok/s | 50 | **2.00 ×** (25) | – "
        "| 0.50 × (100) |"
    )
    assert again == (
        "| first token of the same prompt again, ms | 100 | **4.00 ×** (400) | **123.45 ×** "
        "(12,345) | – |"
    )
    below = "\n".join(rest)
    for part in ("CPU", "2026-01-02", "starter", "llama-cpp-python 0.3.36", "one round"):
        assert part in below


def test_a_peer_that_was_not_measured_has_no_column(result: report.Report) -> None:
    without = replace(result, metrics=[metric("total_8", Better.HIGHER, ours=50.0, bare=52.0)])
    text = markdown.ratios(without)
    assert text.splitlines()[0] == "|  | ours |"
    assert "llama.cpp" not in text


def test_the_json_file_and_the_plot_have_all_of_them(result: report.Report, tmp_path: Path) -> None:
    report.write(result, tmp_path / "bench.json")
    data = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert list(data["systems"]) == list(SYSTEMS)
    assert data["metrics"][0]["ratio"]["ours/llama_cpp"] == 0.5
    assert (data["machine"]["vllm_mlx"], data["machine"]["llama_cpp"]) == ("0.6.0", "0.5.0-dev")
    plot.save(result, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
