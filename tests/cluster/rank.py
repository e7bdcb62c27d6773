"""One rank of a group that computes tiny models: `python -m tests.cluster.rank RANK PORT...`, with
a port for the connection to rank 0, then one for each rank. Rank 0 reads scenarios from its
standard input, a line of JSON each, and prints what they gave."""

import gc
import json
import os
import socket
import sys
import time
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

from omlx_server.compute.cluster.ranks import ConnectedRanks, connect_ranks
from omlx_server.compute.hardware import device
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec
from omlx_server.core.cluster.handshake import RankRefusal
from omlx_server.engine.cluster.follower import Follower
from omlx_server.engine.cluster.link import LinkFailed, authenticated, connect
from tests.cluster.counted import connections
from tests.cluster.scenarios import Reply, Scenario, answers, load
from tests.compute.all_kinds import BLOCK

SECRET = b"the secret of this test"


def lead(meeting: int, addresses: list[list[str]]) -> None:
    ranks: ConnectedRanks
    listener = socket.create_server(("127.0.0.1", meeting))
    links = [
        authenticated(listener.accept()[0], SECRET, lost, challenges_first=True)
        for _ in addresses[1:]
    ]

    def tell(message: object) -> None:
        for link in links:
            link.tell(message)

    for link in links:
        link.start(lambda answer: ranks.followers.receive(answer))
    ranks = connect_ranks(addresses, 0)
    ranks.lead(tell)
    for line in sys.stdin:
        scenario = Scenario(**json.loads(line))
        for link in links:
            link.tell(RankRefusal(line))
        loaded, parts = load_and_measure(scenario, ranks)
        given = answers(scenario, loaded)
        reply = Reply(given, parts, *bytes_by_kind(meeting))
        sys.stdout.write(json.dumps(asdict(reply)) + "\n")
        sys.stdout.flush()
        del loaded


def follow(rank: int, meeting: int, addresses: list[list[str]]) -> None:
    link = connected(meeting)
    inbox: SimpleQueue[Any] = SimpleQueue()
    link.start(inbox.put)
    ranks = connect_ranks(addresses, rank)
    follower: Follower | None = None
    while True:
        message = inbox.get()
        if isinstance(message, RankRefusal):  # the only message that holds any text
            follower = None
            loaded, _ = load_and_measure(Scenario(**json.loads(message.why)), ranks)
            codec = BlockCodec.of(loaded.model, BLOCK)
            follower = Follower(loaded, codec, None, "", link.tell)
            del loaded
        elif follower is not None:
            follower.do(message)


def load_and_measure(
    scenario: Scenario, ranks: ConnectedRanks
) -> tuple[LoadedModel, list[tuple[int, int]]]:
    """The loaded model, and the `parts` of all ranks as `Reply` has them."""
    gc.collect()
    before = device.active_memory()
    loaded = load(scenario, ranks)
    gc.collect()
    weights = of_all(ranks, loaded.weight_bytes)  # after this the device has let go of all else
    active = of_all(ranks, device.active_memory() - before)
    return loaded, list(zip(weights, active, strict=True))


def of_all(ranks: ConnectedRanks, number: int) -> list[int]:
    """The numbers that all ranks ask with, rank 0's first."""
    return [ranks.most(number if rank == ranks.rank else 0) for rank in range(ranks.size)]


def bytes_by_kind(meeting: int) -> tuple[dict[str, int], dict[str, int]]:
    """What rank 0, which meets the others at this port, has sent and received."""
    sent, received = ({"ring": 0, "links": 0} for _ in range(2))
    for (own, _), counted in connections().items():
        kind = "links" if own == meeting else "ring"
        sent[kind] += counted.sent
        received[kind] += counted.received
    return sent, received


def connected(port: int) -> Any:
    while True:
        try:
            return connect(("127.0.0.1", port), SECRET, lost)
        except LinkFailed:
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
