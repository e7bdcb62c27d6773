"""The first minute, against a small server that speaks the same API as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx_server.cli import quickstart
from omlx_server.errors import OmlxError
from tests.cli.conftest import FAKE_SERVER

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, str(FAKE_SERVER))


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("once", [True, False])
def test_without_a_terminal_it_shows_two_answers_and_ends_the_server(
    once: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert quickstart.run(once=once, program=PROGRAM) == 0
    out, err = capfd.readouterr()
    assert "> What is the capital of France?\nIt is Paris.\n[first token after" in out
    assert "Of its 30 prompt tokens 20 came from the cache" in out
    assert "/v1  (any OpenAI client" in out
    assert "Serving until" not in out
    assert err == "fake server: stopped\n"


def test_a_taken_port_is_passed_by(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if taken.connect_ex(("127.0.0.1", 8000)) != 0:
            taken.bind(("127.0.0.1", 8000))
            taken.listen()
        assert quickstart.run(once=True, program=PROGRAM) == 0
    assert ":8000 " not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"FAKE_ANSWER": "It is Rome."}, "should name Paris"),
        ({"FAKE_DEAD": "1"}, "ended with code 7 before it was ready"),
        ({"FAKE_EXIT_CODE": "3"}, "ended with code 3"),
    ],
)
def test_what_goes_wrong_is_an_error(
    environ: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OmlxError, match=message):
        quickstart.run(once=True, program=PROGRAM)


SERVE_ON = """
import sys
from omlx_server.cli import app, quickstart
sys.stdout.isatty = lambda: True
sys.exit(quickstart.run(once=False, program=sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_on_a_terminal_it_serves_until_it_is_told_to_end(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE_ON, *PROGRAM],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        assert process.stdout and process.stderr
        for line in process.stdout:
            if "Serving until Ctrl-C" in line:
                break
        assert process.poll() is None
        # As a terminal does: to the whole group. The server must hear of it from us alone.
        os.killpg(process.pid, number)
        assert process.wait(30) == 0
        assert process.stderr.read() == "fake server: stopped\n"
