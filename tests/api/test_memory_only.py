"""`cache.hot_cache_only`: nothing is written anywhere, whatever the server is asked to do."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.api.harness import REPO, START_SECONDS, wait_for
from tests.api.stories import STORY

# The log of the server is what it says on its standard streams, which are open already.
HOOKED = """
import os, sys
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.truncate", "os.utime",
           "shutil.copyfile", "tempfile.mkstemp", "tempfile.mkdtemp")
def hook(event, args):
    # A pipe to the child that tries grammars is no file, and nothing stays in the null device.
    idle = event == "open" and (isinstance(args[0], int) or args[0] == os.devnull)
    if idle:
        return
    if event == "open" and isinstance(args[2], int) and args[2] & WRITES:
        os.write(2, f"CHANGED open {args[0]!r}\\n".encode())
    elif event in CHANGES:
        os.write(2, f"CHANGED {event} {args!r}\\n".encode())
sys.addaudithook(hook)
sys.dont_write_bytecode = True
from omlx_server.cli.app import main
sys.exit(main())
"""


def listed(*roots: Path) -> dict[str, int]:
    """Everything below, with the time of its last change. On a CPU, MLX keeps the kernels that it
    has compiled in the directory for temporary files: they know of no prompt."""
    found = [path for root in roots for path in [root, *root.rglob("*")]]
    kernels = roots[2] / "mlx"
    own = [path for path in found if path != roots[2] and not path.is_relative_to(kernels)]
    times = dict[str, int]()
    for path in own:
        with suppress(FileNotFoundError):  # it was being written, and has its name now
            times[str(path)] = path.lstat().st_mtime_ns
    return times


@dataclass(frozen=True, slots=True)
class Watched:
    """A server that says what it changes, and all places where it could."""

    http: httpx.Client
    config: Path
    log: Path
    places: tuple[Path, ...]

    def files(self) -> dict[str, int]:
        return listed(*self.places)

    def changes(self, begun: int = 0) -> list[str]:
        """What it said since its log was so long."""
        lines = self.log.read_text()[begun:].splitlines()
        return [line for line in lines if line.startswith("CHANGED")]

    def ask(self, model: str = "org/tiny") -> None:
        """More than the memory holds, some of it again; and what may be asked of the cache."""
        for number in range(12):
            content = f"{number % 3} {STORY}"
            body = {"model": model, "messages": [{"role": "user", "content": content}]}
            answer = self.http.post("/v1/chat/completions", json={**body, "max_tokens": 8})
            assert answer.status_code == 200, answer.text
            if number in (4, 8):
                self.http.post("/v1/cache/pin", json=body)
                archive = self.http.post("/v1/cache/export", json=body).content
                kind = {"Content-Type": "application/x-tar"}
                self.http.post(f"/v1/cache/import?model={model}", content=archive, headers=kind)

    def unload(self, model: str) -> None:
        answer = self.http.post("/admin/models/unload", json={"model": model})
        assert answer.status_code == 200, answer.text

    def turn_on(self) -> None:
        """`cache.hot_cache_only`, while it runs."""
        begun, fresh = len(self.log.read_text()), self.config.with_suffix(".new")
        fresh.write_text("[cache]\nhot_cache_only = true\n")
        fresh.replace(self.config)
        wait_for(lambda: "hot_cache_only false -> true" in self.log.read_text()[begun:])


@pytest.fixture
def places(tmp_path: Path, tiny_models: Path) -> tuple[Path, ...]:
    """Where a server is at home, at work, and has its temporary files; and the models."""
    own = tuple(tmp_path / name for name in ("home", "cwd", "scratch"))
    for directory in own:
        directory.mkdir()
    return (*own, tiny_models)


@contextmanager
def watched(tmp_path: Path, places: tuple[Path, ...], *sets: str) -> Iterator[Watched]:
    """It must end in peace."""
    home, cwd, scratch, models = places
    config, log = tmp_path / "omlx.toml", tmp_path / "log"
    config.touch()
    words = [f"models.dirs={models}", f"cache.cold_dir={home / 'kv'}", *sets]
    options = [word for setting in words for word in ("--set", setting)]
    own = {k: v for k, v in os.environ.items() if not k.startswith(("OMLX_", "XDG_"))}
    own |= {"HOME": str(home), "TMPDIR": str(scratch), "PYTHONPATH": str(REPO)}
    own |= {"OMLX_CONFIG": str(config)}
    with log.open("wb") as output:
        command = [sys.executable, "-c", HOOKED, "serve", "org/tiny", "--port", "0", *options]
        server = subprocess.Popen(command, cwd=cwd, env=own, stdout=output, stderr=output)
    try:
        url = wait_for(lambda: re.search(r"http://[0-9.]+:\d+", log.read_text()), START_SECONDS)[0]
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            wait_for(lambda: http.get("/health/ready").status_code == 200 or None, START_SECONDS)
            yield Watched(http, config, log, places)
        server.terminate()
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.wait()


def test_no_file_and_no_directory_is_left_anywhere(
    tmp_path: Path, places: tuple[Path, ...]
) -> None:
    before = listed(*places)
    sets = ("cache.hot_cache_only=true", "cache.hot_cache_max_bytes=1MB")
    with watched(tmp_path, places, *sets) as server:
        server.ask()
    assert server.files() == before
    assert server.changes() == []


def test_nothing_touches_the_disk_from_when_it_is_turned_on(
    tmp_path: Path, places: tuple[Path, ...]
) -> None:
    """Before, it is seen to write, so these tests can fail. Nor is a cold tier told of any more.
    What is in its directory stays there, a pin as well, and who ends one is told so."""
    small = "cache.cold_min_free_disk=0", "cache.hot_cache_max_bytes=1MB"
    with watched(tmp_path, places, *small, "auth.admin=key") as server:
        server.ask()
        server.unload("org/tiny")  # nobody is left who could say that there is no cold tier
        assert 'tier="cold"' in server.http.get("/metrics").text
        assert any(path.endswith(".safetensors") for path in server.files())
        assert any(".tmp-" in line for line in server.changes())
        server.turn_on()
        before, begun = server.files(), len(server.log.read_text())
        wait_for(lambda: 'tier="cold"' not in server.http.get("/metrics").text)
        server.ask()
        pins = "/v1/cache/pins"
        told = [pin["id"] for pin in server.http.get(pins).json()["data"]]
        ended = server.http.delete(f"{pins}/{told[0]}").json()
        assert ended == {"id": told[0], "object": "cache.pin", "deleted": True, "stored": True}
        assert [pin["id"] for pin in server.http.get(pins).json()["data"]] == told[1:]
        server.http.post("/v1/cache/reset")
        server.unload("org/tiny")
        server.ask("org/thinker")  # never loaded before: all is to be found out about it
        assert 'tier="cold"' not in server.http.get("/metrics").text
    assert server.files() == before
    assert server.changes(begun) == []
