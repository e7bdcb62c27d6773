"""The doctor's judgement: what is well, what is not, and that each problem comes with a way out."""

import json
import os
import socket
from pathlib import Path

import pytest

from omlx_server.doctor import memory, network, software, storage
from omlx_server.doctor.finding import Finding, Level, in_words
from omlx_server.doctor.software import Device
from omlx_server.settings import CacheSettings, Settings

GB = 10**9
MAC = Device("M4", False, "Accelerate", 32 * GB, 20 * GB)
BOX = Device("CPU", True, None, 16 * GB, None)


def settings(**memory: object) -> Settings:
    return Settings.of({"memory": memory})


def test_a_problem_needs_a_fix_and_what_is_well_none() -> None:
    for level, fix in ((Level.FAIL, ""), (Level.WARN, ""), (Level.OK, "do it")):
        with pytest.raises(ValueError, match="fix"):
            Finding(level, "x", "y", fix)


@pytest.mark.parametrize(
    ("version", "level"),
    [((3, 10, 9), "fail"), ((3, 11, 0), "ok"), ((3, 14, 1), "ok"), ((3, 15, 0), "warn")],
)
def test_python(version: tuple[int, int, int], level: str) -> None:
    assert software.python(version, "/venv").level == level


def test_what_the_probe_said() -> None:
    said = {"device": "CPU", "is_cpu": True, "blas": None, "ram": 1, "working_set": None}
    assert software.read_device(0, json.dumps(said)) == Device("CPU", True, None, 1, None)
    for code, out in ((1, json.dumps(said)), (0, ""), (0, "{}"), (0, "[1]"), (0, "nonsense")):
        assert software.read_device(code, out) is None, out


def test_mlx_that_works_that_is_missing_and_that_crashes() -> None:
    assert software.mlx(MAC, 0, "").level == "ok"
    missing = software.mlx(None, 1, "Traceback\nModuleNotFoundError: No module named 'mlx'\n")
    assert (missing.level, missing.says.count("\n")) == ("fail", 0)
    assert "No module named 'mlx'" in missing.says
    crashed = software.mlx(None, -4, "")
    assert (crashed.level, "signal 4" in crashed.says) == ("fail", True)
    assert software.mlx(None, 1, "").level == "fail"


def test_blas_matters_on_the_cpu_only() -> None:
    assert software.blas(MAC).level == "ok"
    assert software.blas(BOX).level == "warn"
    assert "libopenblas0-pthread" in software.blas(BOX).fix


def test_the_limit_is_what_the_server_reckons_itself() -> None:
    assert memory.limit_of(settings(), MAC) == 20 * GB
    assert memory.limit_of(settings(), BOX) == 12 * GB
    assert memory.limit_of(settings(reserve=GB), BOX) == 15 * GB
    assert memory.limit_of(settings(limit=3 * GB), BOX) == 3 * GB


def test_a_limit_beyond_the_machine() -> None:
    assert memory.limit(settings(), MAC).level == "ok"
    assert memory.limit(settings(limit=17 * GB), BOX).level == "fail"
    assert memory.limit(settings(limit=16 * GB), BOX).level == "ok"
    assert memory.limit(settings(limit=21 * GB), MAC).level == "warn"


def test_what_metal_may_wire_is_told() -> None:
    assert memory.wired(settings(), MAC).says == "no memory is wired: memory.wired is off"
    assert memory.wired(settings(wired="auto"), BOX).says == "no memory is wired: there is no Metal"
    wired = memory.wired(settings(wired="6GB"), MAC)
    assert wired.level == "warn" and wired.says.startswith("Metal may wire 6.0 GB;")


@pytest.mark.parametrize(
    ("nbytes", "level"),
    [(GB, "ok"), (9 * GB, "ok"), (int(9.1 * GB), "warn"), (10 * GB, "warn"), (11 * GB, "fail")],
)
def test_weights_beside_the_limit(nbytes: int, level: str) -> None:
    assert memory.weights("m", nbytes, 10 * GB).level == level


def test_disk() -> None:
    cache = CacheSettings(cold_min_free_disk=10 * GB, cold_cache_max_bytes=20 * GB)
    assert storage.disk(cache, 9 * GB).level == "warn"
    assert "no block is stored" in storage.disk(cache, 9 * GB).says
    assert storage.disk(cache, 11 * GB).level == "warn"
    assert storage.disk(cache, 12 * GB).level == "ok"
    assert "lower cache.cold_min_free_disk (10.0 GB)" in storage.disk(cache, 11 * GB).fix
    none = CacheSettings(cold_min_free_disk=0, cold_cache_max_bytes=20 * GB)
    assert storage.disk(none, GB).fix == "make room"  # there is nothing to lower
    assert storage.disk(CacheSettings(hot_cache_only=True), 0).level == "ok"
    assert storage.disk(CacheSettings(enabled=False), 0).level == "ok"


def test_directories_and_files_as_the_disk_has_them(tmp_path: Path) -> None:
    place = tmp_path / "kv"
    assert storage.directory("cache", storage.look_at(place)).level == "ok"
    place.mkdir(mode=0o700)
    assert storage.directory("cache", storage.look_at(place)).level == "ok"
    place.chmod(0o755)
    found = storage.directory("cache", storage.look_at(place))
    assert (found.level, found.fix) == ("warn", f"chmod 700 {place}")
    assert storage.directory("models", storage.look_at(place), private=False).level == "ok"
    secret = place / "secret"
    assert storage.private_file("secret", storage.look_at(secret)).level == "ok"
    secret.touch(0o600)
    assert storage.private_file("secret", storage.look_at(secret)).level == "ok"
    secret.chmod(0o640)
    assert storage.private_file("secret", storage.look_at(secret)).level == "warn"


def test_a_place_of_somebody_else_or_that_can_not_be_written() -> None:
    path = Path("/x")
    assert storage.directory("cache", storage.DiskPath(path, 0o700, mine=False)).level == "fail"
    assert storage.directory("cache", storage.DiskPath(path, 0o500, writable=False)).level == "fail"
    assert storage.directory("cache", storage.DiskPath(path, None, writable=False)).level == "fail"


def test_free_bytes_of_what_is_not_there_yet(tmp_path: Path) -> None:
    there = os.statvfs(tmp_path)
    size = storage.free_bytes(tmp_path / "a" / "b")
    assert abs(size - there.f_bavail * there.f_frsize) < GB


def test_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    (tmp_path / "config.json").write_bytes(b"{}")
    assert storage.unreadable(tmp_path) == ""
    assert storage.model("m", tmp_path, "").level == "ok"
    assert storage.model("m", None, "").level == "ok"
    assert storage.model("m", None, "config.json is missing").level == "fail"
    assert "get it again" in storage.model("m", None, "config.json is missing").fix
    assert storage.model("m", None, "it is damaged", "repair it").fix == "repair it"


def test_a_port_that_is_free_taken_or_ours() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        problem = network.try_port("127.0.0.1", number)
        assert problem == "it is in use"
        found = network.listener("port", "port 1", problem, None, "take 2")
        assert (found.level, found.fix) == ("fail", "take 2")
        assert network.listener("port", "port 1", problem, "1.0", "take 2").level == "ok"
    assert network.try_port("127.0.0.1", number) == ""
    assert network.listener("port", "port 1", "", None, "take 2").level == "ok"
    assert network.try_port("no.such.host.invalid", 1)


def test_the_service_and_the_clients() -> None:
    assert software.service("", None).level == "ok"
    assert software.service("running", None).says == "running"
    assert software.service("failed", 3).level == "warn"
    assert "exit code 3" in software.service("failed", 3).says
    assert software.clients(["a", "b"], {}).level == "ok"
    assert software.clients(["a", "b"], {"b": "/bin/b"}).says.startswith("b;")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (20 * GB, "20.0 GB"), (2e13, "20.0 TB")],
)
def test_sizes_in_words(size: float, text: str) -> None:
    assert in_words(size) == text
