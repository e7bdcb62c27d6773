"""Who comes to the port of rank 0: ranks are admitted, and all others refused, which the log says.
Their processes are not needed for that: both ends of each connection are in this one."""

import logging
import socket
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from omlx_server.core.cluster.handshake import Formation, Hello, RankRefusal, Ready, Welcome
from omlx_server.core.cluster.state import RankStatus
from omlx_server.engine.cluster.link import LinkFailed, connect
from omlx_server.wiring.cluster.new_connections import MOST
from tests.api.harness import PATIENCE, REPO, wait_for
from tests.engine.cluster.descriptors import cluster_threads
from tests.wiring.cluster.port import ADDRESSES, HERE, SECRET, WELCOME, Port, hello


def test_a_stranger_is_refused_and_the_log_says_its_address(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(port.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_for(lambda: "a rank at 127.0.0.1 is refused" in caplog.text)
    with pytest.raises(LinkFailed, match="does not know the secret"):
        connect(port.address, b"another secret", pytest.fail)
    wait_for(lambda: caplog.text.count("it does not know the secret of this cluster") == 2)
    assert port.status() is RankStatus.AWAY


@pytest.mark.parametrize(
    ("said", "why", "status"),
    [
        (hello(mlx="0.0.1"), "mlx 0.0.1 and not", RankStatus.REFUSED),
        (hello(omlx_server="0.0.1"), "omlx_server 0.0.1 and not", RankStatus.REFUSED),
        (Hello(1, (), "here"), "mlx None and not", RankStatus.REFUSED),
        (hello(rank=7), "there is no rank 7 here", RankStatus.AWAY),
        (hello(rank=0), "there is no rank 0 here", RankStatus.AWAY),
    ],
    ids=["mlx", "omlx_server", "no versions", "rank 7", "rank 0"],
)
def test_who_does_not_fit_is_refused_and_told_why(
    port: Port, caplog: pytest.LogCaptureFixture, said: Hello, why: str, status: RankStatus
) -> None:
    link, answer = port.says_hello(said)
    link.close()
    assert isinstance(answer, RankRefusal) and why in answer.why
    wait_for(lambda: "a rank at 127.0.0.1 is refused" in caplog.text)
    assert why in caplog.text
    state = port.gathering.states[0]
    assert state.status is status
    assert (why in state.problem) == (status is RankStatus.REFUSED)


def test_who_says_no_hello_is_refused(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    link = connect(port.address, SECRET, pytest.fail)
    link.send_now(Ready(ADDRESSES))
    wait_for(lambda: "it did not say who it is" in caplog.text)
    link.close()


def test_a_rank_is_admitted_once_before_the_group_is_formed_and_after(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, welcome = port.says_hello(hello())
    assert welcome == replace(WELCOME, ips=[*HERE.ips], names=[*WELCOME.names], rdma=[])
    wait_for(lambda: "rank 1 is here: a machine" in caplog.text)
    assert port.status() is RankStatus.CHECKING
    heard = list[object]()
    first.start(heard.append)
    for formed in (False, True):
        second, answer = port.says_hello(hello())
        second.close()
        assert answer == RankRefusal("rank 1 is here already")
        if not formed:
            first.tell(Ready(ADDRESSES))
            wait_for(lambda: port.gathering.is_complete)
            assert port.gathering.form(ADDRESSES) == [ADDRESSES, ADDRESSES]
            wait_for(lambda: Formation([[*ADDRESSES]] * 2, []) in heard)
    assert port.status() is RankStatus.HERE and not port.lost
    first.close()
    wait_for(lambda: port.lost == ["rank 1 (localhost) is lost: the connection was closed"])


def test_many_strangers_at_once_take_few_threads_and_keep_no_rank_out(port: Port) -> None:
    """They say nothing, and only those that are ended for others' sake go before 5 seconds."""
    process, threads = psutil.Process(), cluster_threads()
    strangers = [socket.create_connection(port.address) for _ in range(200)]
    descriptors, taken = process.num_fds(), list[int]()

    def are_but_few_left() -> bool:
        taken.append(cluster_threads() - threads)
        return sum(map(is_over, strangers)) >= len(strangers) - MOST

    try:
        wait_for(are_but_few_left)
        assert 0 < max(taken) <= MOST
        assert process.num_fds() <= descriptors + 2 * MOST
        link, welcome = port.says_hello(hello())
        assert isinstance(welcome, Welcome)
        link.close()
    finally:
        for stranger in strangers:
            stranger.close()


def test_ranks_are_met_again_when_there_are_descriptors_again() -> None:
    command = [sys.executable, "-m", "tests.wiring.cluster.few_descriptors"]
    done = subprocess.run(
        command, cwd=REPO, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == "met\n", done.stderr


def is_over(stranger: socket.socket) -> bool:
    """Whether the other end has hung up on this one."""
    stranger.setblocking(False)
    try:
        while stranger.recv(100):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
