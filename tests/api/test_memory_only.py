"""`cache.hot_cache_only`: nothing is written anywhere, whatever the server is asked to do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx

from tests.api.harness import REPO, wait_for
from tests.api.test_cold import STORY

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
    return {str(path): path.lstat().st_mtime_ns for path in own}


def changes(log: str) -> list[str]:
    return [line for line in log.splitlines() if line.startswith("CHANGED")]


def run(tmp_path: Path, models: Path, *sets: str) -> tuple[str, dict[str, int], dict[str, int]]:
    """What a server says that is asked, reset, asked again and stopped; and what was there before
    and after."""
    home, cwd, scratch = (tmp_path / name for name in ("home", "cwd", "scratch"))
    for directory in (home, cwd, scratch):
        directory.mkdir(parents=True)
    words = [f"models.dirs={models}", f"cache.cold_dir={home / 'kv'}", *sets]
    options = [word for setting in words for word in ("--set", setting)]
    own = {k: v for k, v in os.environ.items() if not k.startswith(("OMLX_", "XDG_"))}
    own |= {"HOME": str(home), "TMPDIR": str(scratch), "PYTHONPATH": str(REPO)}
    log = tmp_path / "log"
    before = listed(home, cwd, scratch, models)
    with log.open("wb") as output:
        command = [sys.executable, "-c", HOOKED, "serve", "org/tiny", "--port", "0", *options]
        server = subprocess.Popen(command, cwd=cwd, env=own, stdout=output, stderr=output)
    try:
        url = wait_for(lambda: re.search(r"http://[0-9.]+:\d+", log.read_text()), 60)[0]
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            wait_for(lambda: http.get("/health/ready").status_code == 200 or None, 60)
            for number in range(12):
                content = f"{number % 3} {STORY}"
                body = {"model": "org/tiny", "messages": [{"role": "user", "content": content}]}
                answer = http.post("/v1/chat/completions", json={**body, "max_tokens": 8})
                assert answer.status_code == 200, answer.text
                if number in (4, 8):
                    http.post("/v1/cache/pin", json=body)
                    archive = http.post("/v1/cache/export", json=body).content
                    kind = {"Content-Type": "application/x-tar"}
                    http.post("/v1/cache/import", content=archive, headers=kind)
        server.terminate()
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.wait()
    return log.read_text(), before, listed(home, cwd, scratch, models)


def test_no_file_and_no_directory_is_left_anywhere(tmp_path: Path, tiny_models: Path) -> None:
    sets = ("cache.hot_cache_only=true", "cache.hot_cache_max_bytes=1MB")
    log, before, after = run(tmp_path, tiny_models, *sets)
    assert after == before
    assert changes(log) == []


def test_the_same_run_with_a_cold_tier_is_seen_to_write(tmp_path: Path, tiny_models: Path) -> None:
    """So that the test above can fail."""
    log, before, after = run(tmp_path, tiny_models, "cache.cold_min_free_disk=0")
    assert any(path.endswith(".safetensors") for path in after.keys() - before.keys())
    assert any(".tmp-" in line for line in changes(log))
