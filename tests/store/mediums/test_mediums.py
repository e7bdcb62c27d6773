"""The remote mediums: the contract on real stores, real faults, and the breaker's arithmetic."""

import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omlx_server.errors import ConfigError
from omlx_server.store.files import Files
from omlx_server.store.mediums.breaker import GuardedMedium
from omlx_server.store.mediums.medium import Medium, MediumError
from omlx_server.store.mediums.objects import Objects
from omlx_server.store.mediums.redis import Redis
from omlx_server.store.mediums.remote import open_remote
from tests.store.clock import Clock
from tests.store.contract import MediumContract, name
from tests.store.redis_server import RedisServer

TIMEOUT = 0.3
KINDS = ("redis", "memory", "folder", "files")


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    # Paths of sockets are limited to about 100 characters, and pytest's are longer on a Mac.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        server = RedisServer(Path(folder))
        yield server
        server.kill()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        server = RedisServer(Path(folder), "--maxmemory", "4mb")
        yield server
        server.kill()


def made(kind: str, folder: Path, request: pytest.FixtureRequest) -> Medium:
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("shared_server")
        server.command("FLUSHALL")
        return Redis(server.url, timeout=10)
    if kind == "memory":
        return Objects("memory:///", timeout=10)
    if kind == "folder":
        return Objects((folder / "a folder").as_uri(), timeout=10)
    return Files(folder / "files")


class TestPlain(MediumContract):
    @pytest.fixture(params=KINDS)
    def medium(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
        medium = made(request.param, tmp_path, request)
        yield medium
        medium.close()


class TestGuarded(MediumContract):
    @pytest.fixture(params=KINDS)
    def medium(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
        medium = GuardedMedium(made(request.param, tmp_path, request), deadline_seconds=10)
        yield medium
        medium.close()


def reason_of(call: Callable[[], object]) -> str:
    with pytest.raises(MediumError) as caught:
        call()
    return caught.value.reason


@contextmanager
def ended_by(end: Callable[[], None]) -> Iterator[None]:
    """End a fault, at the latest after two seconds: a call without a timeout fails, and returns."""
    watchdog = threading.Timer(2, end)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        end()


# ---- Redis ----


def test_a_stopped_redis_is_a_timeout_and_comes_back(server: RedisServer) -> None:
    medium = Redis(server.url, timeout=TIMEOUT)
    medium.put(name(1), [b"x"])
    server.pause()
    began = time.monotonic()
    with ended_by(server.resume):
        assert reason_of(lambda: medium.get(name(1))) == "timeout"
        assert time.monotonic() - began < 3 * TIMEOUT, "it is tried once"
    assert medium.get(name(1)) == b"x"


def test_a_killed_redis_opens_the_breaker_and_a_trial_closes_it(server: RedisServer) -> None:
    clock = Clock()
    medium = GuardedMedium(Redis(server.url, timeout=TIMEOUT), deadline_seconds=5, clock=clock)
    medium.put(name(1), [b"x"])
    server.kill()
    assert [reason_of(lambda: medium.get(name(1))) for _ in range(5)] == ["unreachable"] * 5
    assert medium.is_open
    server.start()
    assert reason_of(lambda: medium.get(name(1))) == "unreachable"
    assert medium.failures["unreachable"] == 5, "the medium was left alone"
    clock.now += 5.1
    assert medium.get(name(1)) is None
    assert not medium.is_open


def test_a_full_redis_says_so_and_does_not_open_the_breaker(server: RedisServer) -> None:
    medium = GuardedMedium(Redis(server.url, timeout=5), deadline_seconds=5)
    reasons = []
    for number in range(12):
        try:
            medium.put(name(number), [b"x" * 1_000_000])
        except MediumError as error:
            reasons.append(error.reason)
    assert set(reasons) == {"full"}
    assert len(reasons) > 5
    assert not medium.is_open


def test_a_replica_is_read_only(server: RedisServer) -> None:
    server.command("REPLICAOF", "127.0.0.1", "1")
    medium = Redis(server.url, timeout=5)
    assert reason_of(lambda: medium.put(name(1), [b"x"])) == "read-only"


def test_values_over_the_limit_are_not_read(server: RedisServer) -> None:
    Redis(server.url, timeout=5).put(name(1), [b"12345"])
    medium = Redis(server.url, timeout=5)
    medium.max_bytes = 4
    assert reason_of(lambda: medium.get(name(1))) == "too-large"
    assert reason_of(lambda: medium.put(name(1), [b"12", b"345"])) == "too-large"


def test_a_value_outlives_its_time_to_live_by_nothing(server: RedisServer) -> None:
    medium = Redis(server.url, timeout=5, ttl_seconds=1)
    medium.put(name(1), [b"x"])
    assert medium.get(name(1)) == b"x"
    time.sleep(1.1)
    assert medium.get(name(1)) is None


def test_who_finds_a_value_there_makes_it_stay(server: RedisServer) -> None:
    """It would else be gone, although a server has just been about to write it once more."""
    medium = Redis(server.url, timeout=5, ttl_seconds=1)
    medium.put(name(1), [b"a"])
    longer = Redis(server.url, timeout=5, ttl_seconds=1000)
    assert longer.contains_many([name(1), name(2)]) == {name(1)}
    time.sleep(1.2)
    assert longer.get(name(1)) == b"a"


def test_a_wrong_password_is_not_shown(server: RedisServer) -> None:
    medium = Redis(server.url.replace("unix://", "unix://user:secret@"), timeout=5)
    with pytest.raises(MediumError) as caught:
        medium.get(name(1))
    assert "secret" not in str(caught.value)


# ---- Object stores ----


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port that accepts and never answers, known to the client as its S3."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield silent


def test_a_silent_object_store_is_a_timeout(bucket: socket.socket) -> None:
    medium = Objects("s3://bucket/prefix", timeout=TIMEOUT)
    began = time.monotonic()
    with ended_by(bucket.close):
        assert reason_of(lambda: medium.get(name(1))) == "timeout"
        assert reason_of(lambda: medium.put(name(1), [b"x"])) == "timeout"
    assert time.monotonic() - began < 6 * TIMEOUT


def test_an_absent_object_store_is_unreachable(bucket: socket.socket) -> None:
    medium = Objects("s3://bucket/prefix", timeout=TIMEOUT)
    bucket.close()
    assert reason_of(lambda: medium.get(name(1))) == "unreachable"
    assert reason_of(lambda: medium.contains_many([name(1)])) == "unreachable"


def test_objects_lie_under_namespace_and_key(tmp_path: Path) -> None:
    medium = Objects(tmp_path.as_uri(), timeout=5)
    medium.put(name(1), [b"x"])
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert found == [tmp_path / f"{1:016x}" / "00" / f"{1:064x}.safetensors"]


def test_objects_over_the_limit_are_not_read(tmp_path: Path) -> None:
    Objects(tmp_path.as_uri(), timeout=5).put(name(1), [b"12345"])
    medium = Objects(tmp_path.as_uri(), timeout=5)
    medium.max_bytes = 4
    assert reason_of(lambda: medium.get(name(1))) == "too-large"


# ---- The breaker ----


class Moody(Objects):
    """A medium whose `get` fails with `mood`, or waits for `gate`."""

    def __init__(self) -> None:
        super().__init__("memory:///", timeout=5)
        self.mood: str | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.calls = 0

    def get(self, name: object) -> bytes | None:
        self.calls += 1
        self.gate.wait(10)
        if self.mood is not None:
            raise MediumError(self.mood, "as planned")
        return None


def test_pauses_double_up_to_a_minute_and_start_over_after_a_success() -> None:
    moody, clock = Moody(), Clock()
    guarded = GuardedMedium(moody, 5, clock)

    def pause_after_failure() -> float:
        assert reason_of(lambda: guarded.get(name(1))) == "io"
        began = clock.now
        while guarded.is_open:
            clock.now += 0.5
        return clock.now - began

    moody.mood = "io"
    assert [pause_after_failure() for _ in range(10)] == [0, 0, 0, 0, 5, 10, 20, 40, 60, 60]
    moody.mood = None
    guarded.get(name(1))
    moody.mood = "io"
    assert [pause_after_failure() for _ in range(5)] == [0, 0, 0, 0, 5]
    assert guarded.failures["io"] == 15


def test_only_failures_in_a_row_open_the_circuit() -> None:
    moody = Moody()
    guarded = GuardedMedium(moody, 5, Clock())
    for mood in ("io", "io", "io", "io", "full", "io", "io", "io", "io"):
        moody.mood = mood
        assert reason_of(lambda: guarded.get(name(1))) == mood
    assert not guarded.is_open


def test_a_hanging_call_is_left_behind_alone() -> None:
    moody = Moody()
    guarded = GuardedMedium(moody, 0.05, Clock())
    moody.gate.clear()
    assert reason_of(lambda: guarded.get(name(1))) == "timeout"
    assert reason_of(lambda: guarded.put(name(1), [b"x"])) == "timeout"
    assert reason_of(lambda: guarded.get(name(1))) == "timeout"
    assert moody.calls == 1, "one call at most is out"
    moody.gate.set()
    deadline = time.monotonic() + 5
    while "cold-store-call" in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert guarded.get(name(1)) is None
    assert guarded.failures["timeout"] == 3


# ---- Opening by URL ----


def test_urls_open_the_medium_of_their_scheme(tmp_path: Path) -> None:
    for url in ("redis://h:1/0", "rediss://h", "valkey://h", "valkeys://h", "unix:///s"):
        assert isinstance(open_remote(url, timeout=1), Redis)
    for url in ("memory:///", tmp_path.as_uri(), "s3://bucket/prefix"):
        assert isinstance(open_remote(url, timeout=1), Objects)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://user:secret@host",
        "secret",
        "redis://:secret@host:secret/0",
        "redis://host/0?secret=1",
        "az://secret",
        "file:///dev/null/secret",
    ],
)
def test_a_bad_url_is_a_config_error_without_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_remote(url, timeout=1)
    assert "secret" not in str(caught.value) + caught.value.hint
    assert caught.value.hint


@pytest.mark.parametrize(
    ("url", "package", "module", "extra"),
    [
        ("redis://h", "redis", "omlx_server.store.mediums.redis", "[redis]"),
        ("s3://b", "obstore", "omlx_server.store.mediums.objects", "[objectstore]"),
    ],
)
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, module: str, extra: str
) -> None:
    for loaded in [key for key in sys.modules if key.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError) as caught:
        open_remote(url, timeout=1)
    assert extra in caught.value.hint
