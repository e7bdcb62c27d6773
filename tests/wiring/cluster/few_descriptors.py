"""Rank 0 has no descriptor left, and gets them back: `python -m
tests.wiring.cluster.few_descriptors` prints "met" if it then meets a rank. It is a process of its
own, since the limit holds for all of its threads."""

import io
import logging
import resource
import socket
import sys

from omlx_server.core.cluster.handshake import Welcome
from tests.api.harness import wait_for
from tests.wiring.cluster.port import Port, hello


def main() -> None:
    log = io.StringIO()
    logging.basicConfig(stream=log)
    port = Port()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as first, socket.socket() as second:
        # None at all: Linux gives `accept` its own before anybody comes, so that one is free.
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        first.connect(port.address)
        second.connect(port.address)
        wait_for(lambda: "no rank can be met: [Errno 24]" in log.getvalue())
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    link, welcome = port.says_hello(hello())
    assert isinstance(welcome, Welcome)
    link.close()
    sys.stdout.write("met\n")


if __name__ == "__main__":
    main()
