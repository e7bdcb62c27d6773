"""scripts/bench --peers: what a peer needs is installed once, or the bench ends in one line."""

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from omlx_server.errors import OmlxError
from scripts.benchmarks import peer_command, peer_environment, tiny
from scripts.benchmarks.peer_pins import Build, Pins

ROOT = Path(__file__).parent.parent
SAYS = """
def main():
    print(name, "runs")
"""
VENV = {"bin", "include", "lib", "lib64", "pyvenv.cfg", ".complete"}
TOY = Pins(package="toy", release="1.0", version="1.0", licence="MIT")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package index, and nothing else for pip to look at."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def put_wheel(index: Path, name: str, *, needs: str = "", code: str = SAYS) -> None:
    """A package with a program of its own name."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": f"name = {name!r}\n\n{code}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(index / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def said(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def test_a_peer_is_installed_once(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_wheel(index, "toy", needs="Requires-Dist: torch\n")  # not for what is measured
    peer_environment.ensure(TOY)
    assert said(peer_environment.program(TOY, "toy")) == "toy runs\n"
    assert "toy 1.0" in capsys.readouterr().err
    (index / "toy-1.0-py3-none-any.whl").unlink()
    peer_environment.ensure(TOY)  # asks no index
    assert capsys.readouterr().err == ""


def test_other_pins_make_it_anew(index: Path) -> None:
    put_wheel(index, "toy")
    peer_environment.ensure(TOY)
    put_wheel(index, "box")
    pins = replace(TOY, requirements=("box==1.0",))
    peer_environment.ensure(pins)
    assert said(peer_environment.program(pins, "box")) == "box runs\n"


def test_an_installation_that_fails_is_one_line_and_no_environment(index: Path) -> None:
    pins = replace(TOY, requirements=("box==1.0",))
    put_wheel(index, "box")
    with pytest.raises(OmlxError) as caught:
        peer_environment.ensure(pins)
    message = caught.value.message
    assert message.startswith("can't install toy 1.0: No matching distribution found for toy==1.0")
    assert "\n" not in message and caught.value.hint
    put_wheel(index, "toy")
    peer_environment.ensure(pins)  # the half of it that was there is no environment
    assert said(peer_environment.program(pins, "toy")) == "toy runs\n"


COMPILED = replace(
    TOY, requirements=("cmake==1.0",), build=Build("vendor/thing", "toy-server", ("-DFAST=ON",))
)
# What it builds is the script that the project consists of.
CMAKE = """
import pathlib, shutil, sys

def after(word):
    return pathlib.Path(sys.argv[sys.argv.index(word) + 1])

def main():
    if "--build" in sys.argv:
        program = after("--build") / "bin" / after("--target")
        program.parent.mkdir()
        shutil.copy(after("--build") / "CMakeLists.txt", program)
        program.chmod(0o755)
    elif "-DFAST=ON" in sys.argv:
        shutil.copytree(after("-S"), after("-B"))
"""
BACKEND = """
import pathlib

def prepare_metadata_for_build_wheel(folder, settings=None):
    info = pathlib.Path(folder, "toy-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: toy\\nVersion: 1.0\\n")
    return info.name

def build_wheel(folder, settings=None, metadata=None):
    raise SystemExit("only its source is wanted")
"""


def put_source(index: Path) -> None:
    files = {
        "pyproject.toml": (
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        ),
        "PKG-INFO": "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n",
        "backend.py": BACKEND,
        "vendor/thing/CMakeLists.txt": "#!/bin/sh\necho toy-server runs\n",
    }
    with tarfile.open(index / "toy-1.0.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"toy-1.0/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def test_a_peer_is_compiled_from_a_source_package(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_wheel(index, "cmake", code=CMAKE)
    put_source(index)
    peer_environment.ensure(COMPILED)
    program = peer_environment.program(COMPILED, "toy-server")
    assert said(program) == "toy-server runs\n"
    assert {path.name for path in program.parent.parent.iterdir()} <= VENV  # no source, no objects
    capsys.readouterr()
    peer_environment.ensure(COMPILED)
    assert capsys.readouterr().err == ""


def test_source_that_does_not_compile_is_one_line(index: Path) -> None:
    broken = "def main():\n    print('a.cpp:1:2: error: no such thing')\n    print('stopped')\n"
    put_wheel(index, "cmake", code=f"{broken}    raise SystemExit(1)\n")
    put_source(index)
    with pytest.raises(
        OmlxError, match=r"^can't install toy 1\.0: a.cpp:1:2: error: no such thing$"
    ):
        peer_environment.ensure(COMPILED)
    assert not peer_environment.program(COMPILED, "toy-server").exists()


def test_the_reason_is_what_pip_calls_an_error() -> None:
    command = [sys.executable, "-c", "print('ERROR: no wheel'); print('hint: see above'); exit(1)"]
    with pytest.raises(OmlxError, match=r"^can't install toy 1\.0: no wheel$"):
        peer_command.run(TOY, command, lambda line: None)


def test_nothing_is_measured_when_a_peer_can_not_be_installed(index: Path) -> None:
    model = tiny.save(index.parent / "model")
    command = [sys.executable, "-m", "scripts.benchmarks", "--peers", "vllm_mlx"]
    command += ["--model", str(model), "--out", "out"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "error: can't install vllm-mlx 0.6.0: " in result.stderr
    assert "Traceback" not in result.stderr and "round 1" not in result.stderr
    assert not Path("out").exists()
