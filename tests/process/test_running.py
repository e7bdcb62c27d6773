"""A running server is known by a file that its process locks, and by nothing else."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import IO
from urllib.parse import quote

import psutil
import pytest

from omlx_server.cli.server_client.trust import trusted_url
from omlx_server.process import running
from omlx_server.process.listen import is_own_server, listening, url_of
from omlx_server.process.running import announcing, http_url, is_announced, moved_ports

URL = "http://127.0.0.1:8000"
DIRECTORY = ".local/state/omlx_server/running"
STAYS = f"""
import time
from omlx_server.process.running import announcing
with announcing("{URL}"):
    print("here", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path


def test_it_is_known_as_long_as_it_listens(tmp_path: Path) -> None:
    with listening("127.0.0.1", 0) as sock:
        url = url_of(sock)
        assert is_announced(url) and not is_announced(f"{url}0")
    assert not is_announced(url)
    with announcing(URL):  # what is left of others goes
        assert [file.name for file in (tmp_path / DIRECTORY).iterdir()] == [quote(URL, safe=":")]
    path = str(tmp_path / "omlx.sock")
    with listening("", 0, path):
        assert is_announced(f"unix:{path}")
    assert not is_announced(f"unix:{path}")


def test_a_killed_one_is_not_known_and_another_takes_its_place() -> None:
    with subprocess.Popen([sys.executable, "-c", STAYS], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert is_announced(URL)
        process.kill()
    assert not is_announced(URL)
    with announcing(URL):
        assert is_announced(URL)


def test_the_one_that_came_first_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PAUSE_SECONDS", 0)
    with announcing(URL):
        with announcing(URL):
            assert is_announced(URL)
        assert is_announced(URL)


def test_a_file_that_is_just_removed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    removed: list[Path] = []

    def remove_first(file: IO[str], how: int) -> None:
        flock(file, how)
        if not removed:
            removed.append(next((tmp_path / DIRECTORY).iterdir()))
            removed[0].unlink()

    monkeypatch.setattr(running, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(fcntl, "flock", remove_first)
    with announcing(URL):
        assert removed and is_announced(URL)


def test_a_directory_of_somebody_else_is_believed_by_root_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with announcing(URL), announcing("8000-8001"):
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        assert not is_announced(URL) and moved_ports(8000) == []
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert is_announced(URL) and moved_ports(8000) == [8001]


def test_a_directory_in_which_others_may_write_is_not_believed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = home / DIRECTORY
    with announcing(URL):
        if os.geteuid() == 0:
            os.chown(directory, 4242, -1)
        monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid)
        assert is_announced(URL)
        directory.chmod(0o720)
        assert not is_announced(URL)


def test_without_a_home_a_server_serves_all_the_same(tmp_path: Path) -> None:
    (tmp_path / ".local").touch()
    with announcing(URL):
        assert not is_announced(URL)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8"),
        ("::", "http://[::1]:8"),
        ("mac.local", "http://mac.local:8"),
    ],
)
def test_the_url_is_one_that_leads_there(host: str, url: str) -> None:
    assert http_url(host, 8) == url


def test_one_that_touches_no_disk_is_known_by_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening("127.0.0.1", 0, announced=False) as sock:
        sock.listen()
        host, port = sock.getsockname()
        assert not (tmp_path / DIRECTORY).exists()
        assert not is_own_server(host, port)  # this program is no server
        assert trusted_url(url_of(sock)) == ""
        monkeypatch.setattr(psutil.Process, "cmdline", lambda _: ["python", "-m", "omlx_server"])
        assert is_own_server(host, port) and trusted_url(url_of(sock)) == url_of(sock)
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        assert not is_own_server(host, port)


def test_a_server_of_another_machine_is_none_of_this_user() -> None:
    with listening("0.0.0.0", 0, announced=False) as sock:
        sock.listen()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psutil.Process, "cmdline", lambda _: ["omlx-server"])
            assert trusted_url(f"http://192.0.2.7:{sock.getsockname()[1]}") == ""
            assert trusted_url(f"http://127.0.0.1:{sock.getsockname()[1]}")
