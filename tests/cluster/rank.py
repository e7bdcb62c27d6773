"""One rank of a group that computes tiny models: `python -m tests.cluster.rank RANK PORT...`, with
a port for the connection to rank 0, then one for each rank. Rank 0 reads scenarios from its
standard input, a line of JSON each, and prints what they gave."""

import json
import os
import socket
import sys
import time
from queue import SimpleQueue
from typing import Any

from omlx_server.compute.cluster.ranks import form
from omlx_server.compute.payload import BlockCodec
from omlx_server.core.cluster.meeting import Refused
from omlx_server.engine.cluster.follower import Follower
from omlx_server.engine.cluster.link import NotOfUs, connect, met
from omlx_server.engine.cluster.others import Others
from tests.cluster.scenarios import Scenario, answers, load
from tests.compute.all_kinds import BLOCK

SECRET = b"the secret of this test"


def lead(meeting: int, addresses: list[list[str]]) -> None:
    others: Others
    listener = socket.create_server(("127.0.0.1", meeting))
    links = [met(listener.accept()[0], SECRET, lost, first=True) for _ in addresses[1:]]

    def tell(message: object) -> None:
        for link in links:
            link.tell(message)

    others = Others(tell, len(links))
    for link in links:
        link.start(others.heard)
    ranks = form(addresses, 0)
    ranks.tell = others.tell
    for line in sys.stdin:
        scenario = Scenario(**json.loads(line))
        for link in links:
            link.tell(Refused(line))
        loaded = load(scenario, ranks)
        sys.stdout.write(json.dumps(answers(scenario, loaded, others)) + "\n")
        sys.stdout.flush()


def follow(rank: int, meeting: int, addresses: list[list[str]]) -> None:
    link = connected(meeting)
    inbox: SimpleQueue[Any] = SimpleQueue()
    link.start(inbox.put)
    ranks = form(addresses, rank)
    follower: Follower
    while True:
        message = inbox.get()
        if isinstance(message, Refused):  # the only message that holds any text
            loaded = load(Scenario(**json.loads(message.why)), ranks)
            codec = BlockCodec.of(loaded.model, BLOCK)
            follower = Follower(loaded, codec, None, "", link.tell)
        else:
            follower.do(message)


def connected(port: int) -> Any:
    while True:
        try:
            return connect(("127.0.0.1", port), SECRET, lost)
        except NotOfUs:
            time.sleep(0.05)


def lost(why: str) -> None:
    sys.stderr.write(f"lost: {why}\n")
    os._exit(3)


if __name__ == "__main__":
    rank, meeting, *ports = map(int, sys.argv[1:])
    addresses = [[f"127.0.0.1:{port}"] for port in ports]
    if rank:
        follow(rank, meeting, addresses)
    else:
        lead(meeting, addresses)
