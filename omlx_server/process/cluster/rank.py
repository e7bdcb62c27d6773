"""The process of a rank other than 0, which does what rank 0 tells it.

MLX works on the main thread. The link's threads send signs of life, and end the process when rank 0
is lost: a forward might wait for it for ever.
"""

import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from omlx_server.compute.cluster.ranks import ConnectedRanks, connect_ranks, tells_of_loss
from omlx_server.compute.hardware import device
from omlx_server.core.cluster.commands import Closing
from omlx_server.core.cluster.handshake import (
    Alive,
    Formation,
    Hello,
    RankRefusal,
    Ready,
    RollCall,
    Welcome,
)
from omlx_server.core.crash import Crash, guarded
from omlx_server.engine.cluster.follower import Follower
from omlx_server.engine.cluster.link import FORMING_SECONDS, LOST_SECONDS, Link, LinkFailed, connect
from omlx_server.errors import UsageError
from omlx_server.process.logs import start_logging
from omlx_server.settings import Settings
from omlx_server.wiring.cluster.following import find_model, load_part
from omlx_server.wiring.cluster.identity import free_addresses, versions

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_LAST_WORD_SECONDS = 0.5
_CLOSING_SECONDS = 5.0
# Most seconds for writes to the cold tier after rank 0 is gone.
_DRAIN_SECONDS = 2.0
_EXIT_CODE = 3


def run_rank(rank: int, leader: tuple[str, int], secret: bytes, settings: Settings) -> None:
    """Be this rank of the cluster at `leader`. Never returns. Raises UsageError."""
    log = settings.logging
    start_logging(log.level, log.file, log.format)
    try:
        member = _Rank(rank, leader, secret, settings)
        answer = member.meet()
    except LinkFailed as error:
        raise UsageError(f"can't join the cluster at {leader[0]}:{leader[1]}: {error}") from error
    if isinstance(answer, RankRefusal):
        raise UsageError(f"rank 0 refuses this rank: {answer.why}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: member.leave("it was told to end"))
    member.work(answer)


class _Rank:
    def __init__(
        self, rank: int, leader: tuple[str, int], secret: bytes, settings: Settings
    ) -> None:
        """Connect with rank 0. Raises LinkFailed."""
        self._rank = rank
        self._link: Link = connect(leader, secret, self.leave)
        self._inbox: SimpleQueue[Any] = SimpleQueue()  # messages of rank 0, and None as a wake
        self._settings = settings
        self._welcome: Welcome | None = None
        self._path = Path()
        self._ranks: ConnectedRanks | None = None
        self._follower: Follower | None = None
        self._messages_done = 0

    def meet(self) -> object:
        """Say hello; return rank 0's answer. Raises LinkFailed."""
        self._link.send_now(Hello(self._rank, versions(), platform.node()))
        return self._link.receive()

    def work(self, answer: object) -> None:
        self._inbox.put(answer)
        self._link.start(self._inbox.put, self._sign_of_life)
        while True:
            try:
                message = self._inbox.get(timeout=_POLL_SECONDS)
            except Empty:
                message = None
            crash = guarded(partial(self._obey, message))
            if isinstance(crash, Crash):
                self._give_up(crash)
            self._messages_done += message is not None

    def _obey(self, message: Any) -> None:
        match message:
            case None:
                if self._follower is not None:
                    self._follower.poll()
            case Closing(seconds):
                self._close_follower(seconds)
                _end_process("rank 0 ends")
            case Welcome():
                self._close_follower(_CLOSING_SECONDS)
                self._welcome = message
                self._path = find_model(message, self._settings)
                self._say_ready()
            case RollCall():
                self._say_ready()
            case Formation(addresses, timed_sums):
                self._form_ranks_and_load(addresses, timed_sums)
            case _:
                if self._follower is None:
                    raise UsageError("rank 0 computes before this rank has loaded anything")
                self._follower.do(message)

    def _say_ready(self) -> None:
        assert self._welcome is not None
        self._link.tell(Ready(free_addresses(self._welcome.ips)))

    def _close_follower(self, seconds: float) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close(seconds)

    def _form_ranks_and_load(
        self, addresses: Sequence[Sequence[str]], timed_sums: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Connect the ranks; then time sums of (bytes, rounds) or, without any, load the model."""
        assert self._welcome is not None
        if self._ranks is None:
            self._link.patience = FORMING_SECONDS
            self._link.wait_until_sent()
            backend, rdma = self._settings.cluster.backend, self._welcome.rdma
            self._ranks = connect_ranks(addresses, self._rank, backend, rdma)
        self._link.patience = LOST_SECONDS
        for nbytes, rounds in timed_sums:
            self._ranks.time_sums(nbytes, rounds)
        if timed_sums:
            return
        self._follower = load_part(
            self._path,
            self._welcome,
            self._ranks,
            self._settings,
            self._link.tell,
            partial(self._inbox.put, None),
        )
        _log.info("rank %d has its part of %s", self._rank, self._welcome.names[0])

    def leave(self, why: str) -> NoReturn:
        """Write the cold tier's queue and end the process. Any thread."""
        follower = self._follower
        if follower is not None:
            follower.drain(_DRAIN_SECONDS)
        _end_process(why)

    def _sign_of_life(self) -> Alive:
        return Alive(self._messages_done, device.active_memory(), device.peak_memory())

    def _give_up(self, crash: Crash) -> NoReturn:
        if not (crash.is_foreseen or tells_of_loss(crash.error)):
            _log.error("rank %d can't go on", self._rank, exc_info=crash.error)
        self._link.tell(RankRefusal(crash.reason))
        time.sleep(_LAST_WORD_SECONDS)
        _end_process(crash.reason)


def _end_process(why: str) -> NoReturn:
    """End the process at once: the main thread may wait for ever."""
    try:
        _log.warning("this rank ends: %s", why)
        logging.shutdown()
        sys.stderr.write(f"{why}\n")
        sys.stderr.flush()
    finally:  # standard error is a pipe to rank 0, which may be gone
        os._exit(_EXIT_CODE)
