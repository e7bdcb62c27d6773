"""A program that has imported the modules of a server. It reads orders from a socket, its standard
input, and forks a server for each; tests.api.forked sends them. It has one thread.

What each server would find out again is known here, too: where the texts of the tests' usual
tokenizer can be cut. And what was there before a server began is not looked through for garbage in
each of them. Both take longer than all the rest of a start."""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import omlx_server.cli.serve.serve
import omlx_server.process.server  # noqa: F401
from omlx_server.cli.app import main
from omlx_server.text.tokenizer import Tokenizer
from tests.known_seams import known_seams
from tests.text import makers

_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 1 << 17  # of an order: an environment is the most of it


def know_the_usual_tokenizer() -> None:
    known_seams().start()
    with TemporaryDirectory() as directory:
        Tokenizer.load(makers.save(Path(directory), "byte_level", "")).prepare()


def keep_what_there_is() -> None:
    """Frozen for good, since nothing can thaw a part of it: a server's own objects are always
    looked through."""
    gc.collect()
    gc.freeze()
    gc.freeze = gc.unfreeze = lambda: None


def fork_servers() -> None:
    """Return in each server when it is to begin; end the process when no more orders come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as orders:
        while True:
            order, files, _, _ = socket.recv_fds(orders, _MOST_BYTES, 2)
            if not order:
                os._exit(0)
            if os.fork() == 0:
                _end_with_parent()
                break
            for file in files:
                os.close(file)
            _reap()
    _fork_and_tell(*files)
    _begin_as(json.loads(order), files[0])


def _end_with_parent() -> None:
    """So that nothing is left of tests that were killed. Linux."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork_and_tell(output: int, channel: int) -> None:
    """Return in the server. What waits for it tells its id and its exit code."""
    if server := os.fork():
        os.close(output)
        os.write(channel, b"%d\n" % server)
        _, status = os.waitpid(server, 0)
        os.write(channel, b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    _end_with_parent()
    os.close(channel)


def _begin_as(order: dict[str, Any], output: int) -> None:
    """Make this process what the shell would have made."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, numbers in ((nothing, (0,)), (output, (1, 2))):
        for number in numbers:
            os.dup2(file, number)
        os.close(file)
    os.environ.update(order["environ"])
    os.chdir(order["directory"])
    sys.argv[1:] = order["words"]


if __name__ == "__main__":
    know_the_usual_tokenizer()
    keep_what_there_is()
    fork_servers()
    main()
