"""What clients and operators see of the cold tier: hits after a restart, metrics, the directory."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.api.harness import UNPROBED, Json, cached, serving, text_of, wait_for
from tests.api.stories import STORY, metrics, program

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


def stored(directory: Path) -> list[Path]:
    return list((directory / "kv").rglob("*.safetensors"))


@pytest.fixture(scope="module")
def settings(tiny_models: Path) -> tuple[str, ...]:
    return (f"models.dirs={tiny_models}", UNPROBED)


@dataclass(frozen=True, slots=True)
class Left:
    """What a server has left in its directory, that it answered before, and what was said when
    somebody wanted to clear the directory meanwhile."""

    directory: Path
    first: Json
    refused: CompletedProcess[str]


@pytest.fixture(scope="module")
def left(settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Left:
    directory = tmp_path_factory.mktemp("left")
    with serving("org/tiny", directory, *settings) as server:
        first = server.chat(STORY, max_tokens=12)
        assert cached(first) == 0
        assert set(COLD) <= set(metrics(server))
        refused = program("clear", "--yes", directory=directory)
    assert stored(directory)
    return Left(directory, first, refused)


@pytest.fixture
def again(left: Left, tmp_path: Path) -> Path:
    """A copy of the directory."""
    shutil.copytree(left.directory / "kv", tmp_path / "kv")
    return tmp_path


def test_a_prompt_is_remembered_across_a_restart(
    settings: tuple[str, ...], left: Left, again: Path
) -> None:
    first = left.first
    with serving("org/tiny", again, *settings) as server:
        wait_for(lambda: metrics(server)[COLD[1]] == len(stored(again)) or None)
        warm = server.chat(STORY, max_tokens=12)
        assert cached(warm) > 0
        assert text_of(warm) == text_of(first)
        wait_for(lambda: metrics(server)["omlx_cache_read_blocks_total"] or None)
        found = metrics(server)
        assert found['omlx_cache_bytes{kind="files",tier="cold"}'] > 0
        assert found['omlx_cache_budget_bytes{tier="cold"}'] == 20 * 10**9
        assert found["omlx_cache_read_bytes_total"] > 0
        hits = [found[f'omlx_cache_hit_tokens_total{{tier="{tier}"}}'] for tier in ("cold", "hot")]
        assert hits == [cached(warm), 0]
        assert not [name for name in found if name.startswith("omlx_cache_read_failures_total{")]


def test_damaged_files_cost_time_and_nothing_else(
    settings: tuple[str, ...], left: Left, again: Path
) -> None:
    for path in stored(again):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    with serving("org/tiny", again, *settings) as server:
        cold = server.chat(STORY, max_tokens=12)
        assert text_of(cold) == text_of(left.first)
        assert cached(cold) == 0
        failed = 'omlx_cache_read_failures_total{reason="digest"}'
        wait_for(lambda: metrics(server).get(failed))


def test_write_through_writes_before_the_end(settings: tuple[str, ...], tmp_path: Path) -> None:
    with serving("org/tiny", tmp_path, *settings, "cache.cold_write_through=true") as server:
        server.chat(STORY, max_tokens=4)
        wait_for(lambda: metrics(server)["omlx_cache_written_blocks_total"] or None)
        wait_for(lambda: metrics(server)["omlx_cache_write_queue_bytes"] == 0 or None)
        assert metrics(server)["omlx_cache_written_bytes_total"] > 0
        assert stored(tmp_path)


def test_a_restart_goes_on_with_the_day_and_a_spent_one_writes_nothing(
    settings: tuple[str, ...], again: Path
) -> None:
    before = len(stored(again))
    small = "cache.cold_writes_per_day=1B"
    with serving("org/tiny", again, *settings, small) as server:
        told = metrics(server)
        assert told["omlx_cache_written_today_bytes"] > 0 == told["omlx_cache_written_bytes_total"]
        assert told["omlx_cache_daily_writes_bytes"] == 1
        server.chat(f"Something new. {STORY}", max_tokens=4)
    assert "no more blocks are written today" in server.log
    assert len(stored(again)) == before


def test_the_cache_command_knows_what_a_server_left(left: Left, again: Path) -> None:
    assert left.refused.returncode == 2
    assert "hint: stop it" in left.refused.stderr
    document = json.loads(program("stats", "--json", directory=again).stdout)
    (space,) = document["namespaces"]
    assert space["model"] == "org/tiny"
    assert space["model_is_there"] is True
    assert space["blocks"] == len(stored(again)) > 0
    verified = program("verify", directory=again)
    assert verified.returncode == 0, verified.stdout
    assert program("clear", "--model", "org/tiny", "--yes", directory=again).returncode == 0
    assert not stored(again)


def test_memory_only_makes_no_directory_and_says_what_is_idle(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    with serving("org/tiny", tmp_path, *settings, "cache.hot_cache_only=true") as server:
        server.chat(STORY, max_tokens=4)
        assert not [name for name in metrics(server) if 'tier="cold"' in name]
        idle = next(line for line in server.log.splitlines() if "has no effect" in line)
        assert "cache.cold_dir, cache.cold_min_free_disk" in idle
    assert not (tmp_path / "kv").exists()
