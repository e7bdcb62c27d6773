"""Blocks in a store that servers share: one reads what another has computed, and an outage is a
miss."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.harness import UNPROBED, ServerProcess, cached, serving, text_of, wait_for
from tests.api.stories import metrics
from tests.store.redis_server import RedisServer

PROBED = "memory.activation_reserve=auto"  # what they find is a file as well
STORY = "Several servers tell one story, and only the first of them had to read it. " * 8
FAILED = 'omlx_cache_read_failures_total{reason="%s"}'


def share_secret(one: Path, other: Path) -> None:
    (other / "kv").mkdir(parents=True)
    shutil.copy(one / "kv" / "secret", other / "kv" / "secret")


def files_of(directory: Path) -> set[str]:
    return {path.name for path in (directory / "kv").rglob("*") if path.is_file()}


@pytest.fixture
def settings(tiny_models: Path) -> tuple[str, ...]:
    return (f"models.dirs={tiny_models}", UNPROBED, "cache.cold_write_through=true")


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    try:
        yield server
    finally:
        server.resume()
        server.kill()


def written(server: ServerProcess) -> bool:
    found = metrics(server)
    return (
        bool(found["omlx_cache_written_blocks_total"]) and not found["omlx_cache_write_queue_bytes"]
    )


def test_servers_share_one_store(
    settings: tuple[str, ...], store: RedisServer, tmp_path: Path
) -> None:
    one, other, stranger = tmp_path / "one", tmp_path / "other", tmp_path / "stranger"
    sets = (*settings, f"cache.remote={store.url}")
    with serving("org/tiny", one, *sets, PROBED) as server:
        told = server.chat(STORY, max_tokens=12)
        assert cached(told) == 0
        wait_for(lambda: written(server) or None)
        prompt = told["usage"]["prompt_tokens"]
        share_secret(one, other)
        with serving("org/tiny", other, *sets) as second:
            again = second.chat(STORY, max_tokens=12)
            assert text_of(again) == text_of(told)
            assert cached(again) >= prompt - 64
            assert cached(second.chat("Something else that is new. " * 9, max_tokens=2)) < 64
    assert files_of(one) == {"secret", "lock", "fingerprints.json", "steps.json"}
    with serving("org/tiny", stranger, *sets) as server:  # with a secret of its own
        again = server.chat(STORY, max_tokens=12)
        assert (cached(again), text_of(again)) == (0, text_of(told))
        assert FAILED % "digest" not in metrics(server), "it sees what it can't use"
    with serving("org/tiny", other, *sets) as server:
        assert cached(server.chat(STORY, max_tokens=12)) >= prompt - 64, "a stranger removed it"


def test_an_outage_is_a_miss_and_passes(
    settings: tuple[str, ...], store: RedisServer, tmp_path: Path
) -> None:
    sets = (*settings, f"cache.remote={store.url}")
    with serving("org/tiny", tmp_path, *sets) as server:
        told = server.chat(STORY, max_tokens=12)
        wait_for(lambda: written(server) or None)
    store.pause()
    with serving("org/tiny", tmp_path, *sets) as server:
        again = server.chat(STORY, max_tokens=12)
        assert (cached(again), text_of(again)) == (0, text_of(told))
        wait_for(lambda: metrics(server).get(FAILED % "timeout"))
        store.resume()
    store.kill()
    with serving("org/tiny", tmp_path, *sets) as server:
        again = server.chat(STORY, max_tokens=12)
        assert (cached(again), text_of(again)) == (0, text_of(told))
        wait_for(lambda: metrics(server).get(FAILED % "unreachable"))
        store.start()

        def asks_and_writes() -> bool:
            server.chat(f"{time.monotonic()} " + STORY, max_tokens=2)
            time.sleep(0.2)
            return metrics(server)["omlx_cache_written_blocks_total"] > 0

        wait_for(asks_and_writes)  # the circuit closes by itself


def test_a_folder_of_objects_and_a_reset(settings: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    sets = (*settings, f"cache.remote=file://{folder}")
    with serving("org/tiny", tmp_path, *sets) as server:
        told = server.chat(STORY, max_tokens=12)
        wait_for(lambda: written(server) or None)
    assert list(folder.rglob("*.safetensors"))
    with serving("org/tiny", tmp_path, *sets) as server:
        again = server.chat(STORY, max_tokens=12)
        assert text_of(again) == text_of(told)
        assert cached(again) >= told["usage"]["prompt_tokens"] - 64

        def is_empty_after_a_reset() -> bool:
            """The end of the answer may be noted only after a first one."""
            server.http.post(f"{server.url}/v1/cache/reset", json={})
            return not list(folder.rglob("*.safetensors"))

        wait_for(is_empty_after_a_reset)
        assert cached(server.chat(STORY, max_tokens=12)) == 0


def test_a_url_that_makes_no_sense_is_one_line_without_its_password(tmp_path: Path) -> None:
    for url, word in (("ftp://u:hunter2@host/x", "scheme"), ("redis://u:hunter2@h:x/0", "redis")):
        server = ServerProcess("starter", tmp_path, [f"cache.remote={url}"])
        assert server.wait(60) == 2
        assert word in server.log
        assert "hunter2" not in server.log
        assert "Traceback" not in server.log
