"""What clients and operators see of the cold tier: hits after a restart, metrics, the directory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.harness import REPO, Json, ServerProcess, samples, serving, text_of, wait_for

STORY = "Once upon a time there was a disk that never forgot a block it was given. " * 8
COLD = (
    'omlx_cache_bytes{kind="files",tier="cold"}',
    'omlx_cache_blocks{kind="files",tier="cold"}',
    'omlx_cache_budget_bytes{tier="cold"}',
    'omlx_cache_hit_tokens_total{tier="cold"}',
    'omlx_cache_evictions_total{reason="budget_or_age",tier="cold"}',
    "omlx_cache_written_bytes_total",
    "omlx_cache_written_blocks_total",
    "omlx_cache_read_bytes_total",
    "omlx_cache_read_blocks_total",
    "omlx_cache_write_queue_bytes",
)


def cached(answer: Json) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def metrics(server: ServerProcess) -> dict[str, float]:
    return samples(server.http.get(f"{server.url}/metrics").text)


def stored(directory: Path) -> list[Path]:
    return list((directory / "kv").rglob("*.safetensors"))


def program(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omlx_server", "cache", *arguments, "--dir", str(directory / "kv")],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def settings(tiny_models: Path) -> tuple[str, ...]:
    return (f"models.dirs={tiny_models}",)


def test_a_prompt_is_remembered_across_a_restart(settings: tuple[str, ...], tmp_path: Path) -> None:
    with serving("org/tiny", tmp_path, *settings) as server:
        first = server.chat(STORY, max_tokens=12)
        assert cached(first) == 0
        assert set(COLD) <= set(metrics(server))
    assert stored(tmp_path)

    with serving("org/tiny", tmp_path, *settings) as server:
        wait_for(lambda: metrics(server)[COLD[1]] == len(stored(tmp_path)) or None)
        again = server.chat(STORY, max_tokens=12)
        assert cached(again) > 0
        assert text_of(again) == text_of(first)
        wait_for(lambda: metrics(server)["omlx_cache_read_blocks_total"] or None)
        found = metrics(server)
        assert found['omlx_cache_bytes{kind="files",tier="cold"}'] > 0
        assert found['omlx_cache_budget_bytes{tier="cold"}'] == 20 * 10**9
        assert found["omlx_cache_read_bytes_total"] > 0
        hits = [found[f'omlx_cache_hit_tokens_total{{tier="{tier}"}}'] for tier in ("cold", "hot")]
        assert hits == [cached(again), 0]
        assert not [name for name in found if name.startswith("omlx_cache_read_failures_total{")]


def test_damaged_files_cost_time_and_nothing_else(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    with serving("org/tiny", tmp_path, *settings) as server:
        first = server.chat(STORY, max_tokens=12)
    for path in stored(tmp_path):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    with serving("org/tiny", tmp_path, *settings) as server:
        again = server.chat(STORY, max_tokens=12)
        assert text_of(again) == text_of(first)
        assert cached(again) == 0
        failed = 'omlx_cache_read_failures_total{reason="digest"}'
        wait_for(lambda: metrics(server).get(failed))


def test_write_through_writes_before_the_end(settings: tuple[str, ...], tmp_path: Path) -> None:
    with serving("org/tiny", tmp_path, *settings, "cache.cold_write_through=true") as server:
        server.chat(STORY, max_tokens=4)
        wait_for(lambda: metrics(server)["omlx_cache_written_blocks_total"] or None)
        wait_for(lambda: metrics(server)["omlx_cache_write_queue_bytes"] == 0 or None)
        assert metrics(server)["omlx_cache_written_bytes_total"] > 0
        assert stored(tmp_path)


def test_the_cache_command_knows_what_a_server_left(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    with serving("org/tiny", tmp_path, *settings) as server:
        server.chat(STORY, max_tokens=4)
        refused = program("clear", "--yes", directory=tmp_path)
        assert refused.returncode == 2
        assert "hint: stop it" in refused.stderr
    document = json.loads(program("stats", "--json", directory=tmp_path).stdout)
    (space,) = document["namespaces"]
    assert space["model"] == "org/tiny"
    assert space["model_is_there"] is True
    assert space["blocks"] == len(stored(tmp_path)) > 0
    verified = program("verify", directory=tmp_path)
    assert verified.returncode == 0, verified.stdout
    assert program("clear", "--model", "org/tiny", "--yes", directory=tmp_path).returncode == 0
    assert not stored(tmp_path)


def test_memory_only_makes_no_directory_and_says_what_is_idle(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    with serving("org/tiny", tmp_path, *settings, "cache.hot_cache_only=true") as server:
        server.chat(STORY, max_tokens=4)
        assert not [name for name in metrics(server) if 'tier="cold"' in name]
        idle = next(line for line in server.log.splitlines() if "has no effect" in line)
        assert "cache.cold_dir, cache.cold_min_free_disk" in idle
    assert not (tmp_path / "kv").exists()
