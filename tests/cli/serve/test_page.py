"""`omlx-server up` says where the page is, and opens it on a terminal of a desktop."""

import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from omlx_server.cli.serve.up import has_desktop
from tests.cli.conftest import FAKE_SERVER

ROOT = Path(__file__).parents[3]
UP = """\
import sys
from omlx_server.cli.serve import up
options = up.UpOptions("starter", once="once" in sys.argv, demo=False, config=None, sets=[],
                       program=(sys.executable, {fake!r}), browser="quiet" not in sys.argv)
sys.exit(up.run(options, port="0"))
"""


def opened(home: Path, *words: str, terminal: bool = True, **environ: str) -> tuple[str, str]:
    """What `up` prints, and the addresses that it has opened. A script stands for the browser."""
    note = home / "opened"
    browser = home / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {note}\n')
    browser.chmod(0o755)
    here = {k: v for k, v in os.environ.items() if not k.startswith(("SSH_", "DISPLAY", "WAYLAND"))}
    here |= {"PYTHONPATH": str(ROOT), "FAKE_PAGE": "1", "BROWSER": f"{browser} %s"} | environ
    above, below = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", UP.format(fake=str(FAKE_SERVER)), *words],
        env=here,
        cwd=home,
        stdout=below,
        stderr=subprocess.STDOUT,
    )
    os.close(below)
    said = _read_until(above, ("Serving until", "ends now"))  # the browser was started before
    process.terminate()
    process.wait(60)
    os.close(above)
    return said, note.read_text() if note.exists() else ""


def _read_until(file: int, ends: tuple[str, ...]) -> str:
    said = ""
    while not any(end in said for end in ends):
        part = os.read(file, 4096)
        assert part, said
        said += part.decode()
    return said


def page_in(said: str) -> str:
    [line] = [line for line in said.splitlines() if line.startswith("Page:")]
    return line.split()[1]


def test_a_terminal_of_a_desktop_opens_the_page(tmp_path: Path) -> None:
    said, urls = opened(tmp_path, DISPLAY=":0")
    assert page_in(said) == urls.strip() and urls.endswith("/\n")


def opened_by_owner(
    home: Path, *words: str, terminal: bool = True, **environ: str
) -> tuple[str, str]:
    token = "t" * 32
    where = {"HOME": str(home), "XDG_CONFIG_HOME": "", "DISPLAY": ":0"}
    environ |= {**where, "OMLX_ADMIN_TOKEN": token, "FAKE_TOKEN": token}
    return opened(home, *words, terminal=terminal, **environ)


def test_the_owner_is_signed_in_by_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    said, urls = opened_by_owner(tmp_path)
    printed = page_in(said)
    assert printed.endswith("/#in=code-1")
    file = tmp_path / ".config" / "omlx_server" / "page.html"
    assert urls == f"{file.as_uri()}\n"
    assert f'url={printed.replace("code-1", "code-2")}"' in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("words", "environ", "terminal", "end"),
    [
        (("quiet",), {}, True, "/#in=code-1"),
        (("once",), {}, True, "/"),
        ((), {}, False, "/"),
        ((), {"SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"}, True, "/#in=code-1"),
        ((), {"FAKE_PAGE": ""}, True, ""),
    ],
)
def test_nothing_else_opens_it_and_no_log_has_a_code(
    tmp_path: Path, words: tuple[str, ...], environ: dict[str, str], terminal: bool, end: str
) -> None:
    said, urls = opened_by_owner(tmp_path, *words, terminal=terminal, **environ)
    assert urls == ""
    assert page_in(said).endswith(end) if end else "Page:" not in said


@pytest.mark.parametrize(
    ("environ", "platform", "has"),
    [
        ({}, "darwin", True),
        ({"SSH_TTY": "/dev/pts/1"}, "darwin", False),
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
    ],
)
def test_what_a_desktop_is(environ: dict[str, str], platform: str, has: bool) -> None:
    assert has_desktop(environ, platform) == has
