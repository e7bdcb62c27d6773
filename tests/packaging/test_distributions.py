"""The wheel and the source distribution are complete: built, compared with git, installed into an
environment of its own, and run from there.

The new environment finds the dependencies in that of the tests, so that nothing is downloaded.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from omlx_server import __version__
from tests.api.conftest import CHATML
from tests.text import makers
from tests.tiny_models import save_tiny

ROOT = Path(__file__).parents[2]
BUILD = [sys.executable, "-m", "hatchling", "build"]
INFO = f"omlx_server-{__version__}.dist-info"


def run(*command: str | Path, cwd: Path, environ: dict[str, str] | None = None) -> str:
    """What the program prints on stdout."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the source distribution and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    run(*BUILD, "--directory", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"omlx_server-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    return built / f"omlx_server-{__version__}.tar.gz"


@pytest.fixture(scope="module")
def in_git() -> set[str]:
    """The files of a commit that is made now. A clone has them all."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone, or no git")
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = run("git", *words, cwd=ROOT).split("\0")
    return {name for name in listed if (ROOT / name).is_file()}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path, in_git: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    own = {name for name in names if not name.startswith(f"{INFO}/")}
    assert own == {name for name in in_git if name.startswith("omlx_server/")}
    assert "omlx_server/py.typed" in own
    assert f"{INFO}/licenses/LICENSE" in names


def test_the_source_distribution_holds_all_that_is_in_git(sdist: Path, in_git: set[str]) -> None:
    with tarfile.open(sdist) as archive:
        files = [member.name for member in archive if member.isfile()]
    assert {name.partition("/")[2] for name in files} - {"PKG-INFO"} == in_git


def test_the_source_distribution_builds_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run(*BUILD, "--target", "wheel", "--directory", tmp_path, cwd=source)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


# --- Installed -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(*pip, "--quiet", "--disable-pip-version-check", wheel, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    paths = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (packages / "tests.pth").write_text("\n".join(paths), encoding="utf-8")
    return folder / "bin"


@pytest.fixture(scope="module")
def environ(programs: Path) -> dict[str, str]:
    """Of somebody who has installed the wheel, and has no clone."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("OMLX_", "XDG_", "PYTHON"))}
    return own | {"HOME": str(programs.parent / "home"), "NO_COLOR": "1"}


def test_its_programs_run(programs: Path, environ: dict[str, str], tmp_path: Path) -> None:
    where = "import omlx_server; print(omlx_server.__file__)"
    file = run(programs / "python", "-c", where, cwd=tmp_path, environ=environ)
    assert Path(file).is_relative_to(programs.parent)
    program = programs / "omlx-server"
    assert "serve" in run(program, "--help", cwd=tmp_path, environ=environ)
    assert __version__ in run(program, "version", cwd=tmp_path, environ=environ)


@pytest.fixture(scope="module")
def url(
    programs: Path, environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a server that runs from the installed wheel."""
    folder = tmp_path_factory.mktemp("served")
    model = makers.save(folder / "model", "byte_level", CHATML)
    save_tiny(model, "llama", vocab_size=makers.FAMILIES["byte_level"]().get_vocab_size())
    sets = (f"cache.cold_dir={folder / 'kv'}", "memory.activation_reserve=64MB")
    command = [programs / "omlx-server", "serve", model, "--port", "0"]
    log = folder / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*map(str, command), *(word for one in sets for word in ("--set", one))],
            cwd=folder,
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield address_in(log, process)
        finally:
            process.send_signal(signal.SIGTERM)


def address_in(log: Path, process: subprocess.Popen[bytes]) -> str:
    for _ in range(600):
        text = log.read_text(encoding="utf-8")
        if found := re.search(r"http://127\.0\.0\.1:\d+", text):
            return found[0]
        assert process.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(log.read_text(encoding="utf-8"))


def test_the_installed_server_answers_and_has_the_files_of_its_page(url: str) -> None:
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        message = {"role": "user", "content": "Hello"}
        body = {"model": "model", "messages": [message], "max_tokens": 2}
        answer = http.post("/v1/chat/completions", json=body).raise_for_status().json()
        assert answer["usage"]["completion_tokens"] > 0
        assert "<html" in http.get("/", headers={"accept": "text/html"}).raise_for_status().text
        web = ROOT / "omlx_server" / "web"
        for path in web.rglob("*.*"):
            if path.suffix in (".js", ".css", ".svg"):
                name = path.relative_to(web).as_posix()
                got = http.get(f"/web/{name}").raise_for_status().content
                assert got == path.read_bytes(), name
