"""Where a server listens: a port, or a socket file that is its own while it lives."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from omlx_server.doctor import network
from omlx_server.errors import UsageError
from omlx_server.process.listen import bind, holder_of, listening, url_of
from omlx_server.process.ports import next_free


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


def take(path: Path) -> None:
    with listening("", 0, str(path)) as sock:
        assert sock.family == socket.AF_UNIX


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        take(path)
    assert "\n" not in caught.value.message and caught.value.hint
    return caught.value.message


def test_a_port() -> None:
    with listening("127.0.0.1", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
        sock.listen()
        with pytest.raises(UsageError, match="can't listen on 127"):
            bind("127.0.0.1", sock.getsockname()[1])


def test_the_url_of_all_addresses_is_one_that_can_be_opened() -> None:
    with bind("0.0.0.0", 0) as sock:  # it does not listen
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_who_has_the_port_is_named_and_another_one_proposed() -> None:
    code = (
        "import socket, sys\n"
        "sock = socket.create_server(('127.0.0.1', 0))\n"
        "print(sock.getsockname()[1], flush=True)\n"
        "sys.stdin.read()"
    )
    for words in ([], ["omlx_server"]):
        command = [sys.executable, "-c", code, *words]
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as other:
            name = "another omlx-server" if words else psutil.Process(other.pid).name()
            assert other.stdout is not None
            port = int(other.stdout.readline())
            for host in ("127.0.0.1", "0.0.0.0", "localhost"):
                with pytest.raises(UsageError) as caught:
                    bind(host, port)
                said = f"can't listen on {host} port {port}: {name} (process {other.pid}) listens"
                assert caught.value.message == f"{said} there"
                free = next_free(host, port)
                assert f"--port {free}; any free one: --port 0" in caught.value.hint
            other.communicate("")


def test_what_can_not_be_known_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of processes of other users."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = [c._replace(pid=None) for c in psutil.net_connections("tcp")]
        monkeypatch.setattr(psutil, "net_connections", lambda kind: found)
        with pytest.raises(UsageError, match=f"port {port}: Address already in use"):
            bind("127.0.0.1", port)


def test_where_a_user_may_ask_for_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""

    def refused(kind: str) -> list[object]:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refused)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert f"(process {os.getpid()})" in holder_of("127.0.0.1", taken.getsockname()[1])
        assert holder_of("127.0.0.2", taken.getsockname()[1]) == ""


def test_a_host_that_is_not_of_this_machine() -> None:
    with pytest.raises(UsageError, match=r"can't listen on 192.0.2.1 port 65535: "):
        bind("192.0.2.1", 65535)
    with pytest.raises(UsageError, match=r"can't listen on no such host port 1: .*not known"):
        bind("no such host", 1)


def test_a_socket_file_is_there_for_this_user_while_it_lasts(path: Path) -> None:
    before = os.umask(0)
    try:
        with listening("127.0.0.1", 0, str(path)) as sock:
            assert url_of(sock) == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert os.umask(0) == 0
            assert network.try_socket(path) == "it is in use"
    finally:
        os.umask(before)
    assert not path.exists()


def test_its_directory_is_made_for_this_user(path: Path) -> None:
    inner = path.parent / "a" / path.name
    assert network.try_socket(inner) == ""
    take(inner)
    assert stat.S_IMODE(inner.parent.stat().st_mode) == 0o700


def test_a_relative_path_is_told_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with listening("127.0.0.1", 0, "s.sock") as sock:
        assert url_of(sock) == f"unix:{path}"


def test_a_dead_server_leaves_nothing_in_the_way(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists() and network.try_socket(path) == ""
    with listening("", 0, str(path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_live_one_keeps_it(path: Path) -> None:
    with listening("", 0, str(path)):
        assert "another server listens there" in refusal(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_one_with_too_much_to_do_is_not_taken_for_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(str(path))
        assert "another server listens there" in refusal(path)
        for each in waiting:
            each.close()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_socket_stays(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_text("of somebody")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    assert "no socket" in refusal(path)
    assert "no socket" in network.try_socket(path)
    assert path.is_symlink() or path.exists()


def test_a_path_that_is_too_long_for_the_system(path: Path) -> None:
    long = path.with_name("s" * 108)
    assert "too long" in refusal(long)
    assert "longer than" in network.try_socket(long)


def test_the_longest_path_that_the_doctor_allows_does(path: Path) -> None:
    room = network.LONGEST_SOCKET - len(str(path.parent)) - 1
    longest = path.with_name("s" * room)
    assert network.try_socket(longest) == ""
    take(longest)
    assert network.try_socket(path.with_name("s" * (room + 1)))
    refusal(path.with_name("s" * (room + 1)))


def test_a_directory_in_a_file_is_refused(path: Path) -> None:
    path.write_text("")
    assert "can't listen on the socket" in refusal(path / "s.sock")


def test_another_ones_file_is_not_removed_at_the_end(path: Path) -> None:
    with listening("", 0, str(path)):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


def test_a_socket_of_ours_and_of_a_stranger_for_the_doctor(path: Path) -> None:
    assert network.listener("socket", str(path), "", None, "").level == "ok"
    assert network.listener("socket", str(path), "it is in use", "1.0", "").level == "ok"
    assert (
        network.listener("socket", str(path), "it is in use", None, "take another").level == "fail"
    )
