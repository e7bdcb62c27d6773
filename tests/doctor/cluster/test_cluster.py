"""What the findings on a cluster say, and when they warn."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from omlx_server.compute.cluster.ranks import ConnectedRanks
from omlx_server.core.cluster.hosts import Host
from omlx_server.core.cluster.state import RankState, RankStatus
from omlx_server.doctor.cluster import check, findings, sums
from omlx_server.doctor.cluster.findings import LARGE_BYTES, Sizes
from omlx_server.doctor.finding import Finding, Level
from omlx_server.wiring.cluster.gathering import Gathering
from omlx_server.wiring.cluster.options import GatheringOptions
from tests.tiny_models import save_tiny

SIZES = Sizes(layers=32, hidden=4096)


def of_rank(problem: str, status: RankStatus = RankStatus.AWAY, by_hand: str = "") -> Finding:
    state = RankState(1, "studio", status, problem)
    return findings.rank(state, Host("studio", ("10.0.0.2",)), "mlx 1", "10.0.0.1:7", by_hand, 30)


@pytest.mark.parametrize(
    ("problem", "fix"),
    [
        ("studio: Permission denied (publickey,password).", "ssh-copy-id studio"),
        ("Host key verification failed.", "ssh studio"),
        ("ssh: Could not resolve hostname studio: nodename nor servname", '"ssh"'),
        ("ssh: connect to host studio port 22: Connection refused", "Remote Login"),
        ("ssh: connect to host studio port 22: Operation timed out", "Remote Login"),
        ("zsh:1: command not found: omlx-server", "cluster.program"),
        ("bash: line 1: /opt/omlx-server: No such file or directory", "cluster.program"),
        (
            "can't join the cluster at 10.0.0.1:7: nobody listens there: timed out",
            "studio must reach rank 0 at 10.0.0.1:7",
        ),
        ("it has mlx 1 and not 2", "omlx-server version"),
        ("/m is another model than the m of rank 0", "copy the directory"),
        ("there is no m here (omlx-server pull m)", "omlx-server pull"),
        ("10.0.0.2 is no address of this machine: Can't assign", '"ips"'),
        ("Killed", "logging.file"),
    ],
)
def test_a_problem_of_a_rank_has_its_own_fix(problem: str, fix: str) -> None:
    found = of_rank(problem)
    assert found.level is Level.FAIL
    assert fix in found.fix
    assert found.says == f"studio: {problem}"


def test_a_rank_that_is_ready_is_fine_and_one_without_a_word_is_not() -> None:
    assert of_rank("", RankStatus.READY).says == "studio answers, has the model, and mlx 1 as here"
    assert "did not come for 30 s" in of_rank("").says
    assert "did not find the model for 30 s" in of_rank("", RankStatus.CHECKING).says
    assert of_rank("", by_hand="x rank 1").fix == "start it there: x rank 1"


def test_the_time_of_a_sum_bounds_the_tokens_of_an_answer() -> None:
    """The median counts: 64 sums of 1 ms."""
    fast = findings.latency([0.001, 0.0001, 0.5], "m", SIZES)
    assert fast.level is Level.OK
    assert "takes 1.00 ms (median of 3); a token of m waits for 64: at most 16 tokens/s" in (
        fast.says
    )
    slow = findings.latency([0.002], "m", None)
    assert slow.level is Level.WARN
    assert "token" not in slow.says and "cable" in slow.fix


def test_a_model_that_can_not_be_split_over_the_ranks_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")  # 4 heads, 2 of keys and values
    group: Any = None
    why = sums.why_not_split(tmp_path, ConnectedRanks(0, 3, group))
    assert why == "its 4 attention heads can't be shared out to 3 ranks, but to 2"
    found = findings.not_split("m", why)
    assert (found.level, found.what) == (Level.FAIL, "group")
    assert why in found.says


def test_the_bandwidth_is_that_of_a_ring() -> None:
    """Over 4 ranks each sends 1.5 times what is summed."""
    just = [1.5 * 8 * LARGE_BYTES / 1e9]
    found = findings.bandwidth(just, 4, "m", SIZES)
    assert found.level is Level.OK
    # 125 MB/s, over 64 sums of 8,192 bytes, 1.5 times each.
    assert "1 Gbit/s; prompts of m at most 159 tokens/s" in found.says
    assert findings.bandwidth([just[0] * 1.01], 4, "m", None).level is Level.WARN
    assert findings.bandwidth(just, 2, "m", None).level is Level.WARN


@pytest.mark.parametrize(
    ("script", "problem", "why"),
    [
        ("read order; echo begun >&2; echo no way >&2; exit 1", "", "no way"),
        ("echo no MLX >&2; exit 1", "", "no MLX"),
        ("read order; exit 3", "", "MLX has ended with 3"),
        ("sleep 600", "rank 1 is lost", "rank 1 is lost"),
        ("sleep 600", "", "did not connect"),
        ("read order", "", ""),
    ],
)
def test_ranks_that_do_not_connect_end_the_check_with_a_reason(
    script: str, problem: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "SUMMING_SECONDS", 0.2 if why == "did not connect" else 60)
    gathering = Gathering(GatheringOptions([Host("", ("127.0.0.1",))]))
    gathering.problem = problem
    pipe = subprocess.PIPE
    words = ["sh", "-c", f"exec {script}" if script.startswith("sleep") else script]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        if not script.startswith(("read", "sleep")):
            process.wait()  # it has ended when it is asked
        said = check.why_no_sums(gathering, process, {"sums": []})
        process.kill()
    assert (why in said) if why else not said
    found = findings.connected(2, "ring", said)
    assert found.level is (Level.FAIL if why else Level.OK)
