"""What runs the clients' scenarios, without any of the clients."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.harness import REPO
from tests.clients import installation
from tests.clients.installation import NoNode, NotInstalled
from tests.clients.results import Result, failed, table
from tests.clients.scenario import Server

SERVER = Server(
    url="http://127.0.0.1:1",
    model="starter",
    embedding_model="embedder",
    calling_model="caller",
    calling_model_answer="Rain.",
    model_path=Path("/models/starter"),
    directory=Path("/tmp/client"),
    python="python",
)
SCRIPT = """
from tests.clients.scenario import Scenarios

scenarios = Scenarios("pytest")

@scenarios
def well(server):
    print("of the client itself")
    assert server.v1 == "http://127.0.0.1:1/v1" and server.model == "starter"

@scenarios
def badly(server):
    raise ValueError("two\\nlines")

@scenarios
def after_that(server):
    pass

scenarios.main()
"""


def result(error: str = "", skipped: bool = False) -> Result:
    return Result("openai", "3.0", "chat", 1.25, error, skipped)


@pytest.mark.parametrize(
    "name", [n for n in installation.names() if n not in installation.NODE_CLIENTS]
)
def test_a_client_has_a_script_and_exact_pins(name: str) -> None:
    text = (installation.REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")
    pins = [line for line in text.splitlines() if line]
    assert pins and all(re.fullmatch(r"[\w\-\[\],]+==[\w.]+", pin) for pin in pins)
    script = (installation.HERE / f"{name}_client.py").read_text(encoding="utf-8")
    assert "@scenarios\n" in script and script.endswith("    scenarios.main()\n")


def test_every_script_belongs_to_a_client() -> None:
    scripts = {path.stem.removesuffix("_client") for path in installation.HERE.glob("*_client.py")}
    assert {*scripts, *installation.NODE_CLIENTS} == set(installation.names())
    for name in installation.NODE_CLIENTS:
        assert (installation.HERE / name / "client.mjs").is_file()


def test_scenarios_are_told_one_by_one_whatever_becomes_of_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": str(REPO), **SERVER.variables()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    results = [Result.of_line("pytest", line) for line in done.stdout.splitlines()]
    assert [(r.scenario, r.word) for r in results] == [
        ("well", "ok"),
        ("badly", "FAILED"),
        ("after_that", "ok"),
    ]
    assert results[1].error == "ValueError: two lines"
    assert results[0].version == pytest.__version__
    assert "of the client itself" in done.stderr and "Traceback" in done.stderr


def test_one_failure_is_enough_and_nothing_is_no_success() -> None:
    assert not failed([result(), result(skipped=True)])
    assert failed([result(), result("broken")])
    assert failed([])


def test_the_table_has_a_line_for_each() -> None:
    lines = table([result(), result("broken"), result(skipped=True)]).splitlines()
    assert lines[0].split() == ["client", "version", "scenario", "result", "seconds"]
    assert [line.split() for line in lines[2:]] == [
        ["openai", "3.0", "chat", word, "1.2"] for word in ("ok", "FAILED", "skipped")
    ]


def test_a_client_that_cannot_be_installed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without a network: then it is tried again, and what is installed is left alone."""
    (tmp_path / "odd.txt").write_text("no-such-package-of-omlx==1.0\n", encoding="utf-8")
    monkeypatch.setattr(installation, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(installation, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(NotInstalled, match="odd could not be installed: ERROR: No matching"):
        installation.install("odd")
    place = tmp_path / "environments" / "odd"
    assert not (place / ".installed").exists()
    (place / ".installed").write_text("no-such-package-of-omlx==1.0\n", encoding="utf-8")
    command = installation.install("odd").command
    assert command == (str(place / "bin" / "python"), "-m", "tests.clients.odd_client")


@pytest.mark.parametrize("name", installation.NODE_CLIENTS)
def test_a_machine_without_node_skips_its_clients(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoNode, match="not on the PATH"):
        installation.install(name)
