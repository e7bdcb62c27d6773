"""Rank 0's side of a cluster: it starts the other ranks, meets them, and notices a loss.

It has its own threads. MLX has one group per process, so after a loss `on_lost` starts the process
anew.
"""

import logging
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat

from omlx_server.core.cluster.commands import Closing, Command, PayloadRead
from omlx_server.core.cluster.handshake import (
    Formation,
    Hello,
    RankRefusal,
    Ready,
    RollCall,
    Welcome,
)
from omlx_server.core.cluster.hosts import Host
from omlx_server.core.cluster.state import RankState, RankStatus
from omlx_server.engine.cluster.link import (
    FORMING_SECONDS,
    LOST_SECONDS,
    Link,
    LinkFailed,
    authenticated,
    hang_up,
)
from omlx_server.errors import UsageError, one_line
from omlx_server.wiring.cluster.identity import difference, versions
from omlx_server.wiring.cluster.new_connections import NewConnections
from omlx_server.wiring.cluster.options import GatheringOptions
from omlx_server.wiring.cluster.starting import (
    CommandLine,
    command_lines_of,
    line_by_hand,
    log_output,
)

_log = logging.getLogger(__name__)
_LAST_WORD_SECONDS = 2.0
# When a rank dies, steps of others may fail before its connection is seen to end.
CAUSE_SECONDS = 1.0
_ACCEPT_AGAIN_SECONDS = 0.5
_AGAIN_SECONDS = (1.0, 2.0, 5.0, 10.0)


@dataclass(slots=True, eq=False)
class _Member:
    rank: int
    host: Host
    state: RankState
    link: Link | None = None
    addresses: Sequence[str] = ()
    process: "subprocess.Popen[bytes] | None" = None
    process_of_link: "subprocess.Popen[bytes] | None" = None


class Gathering:
    """The other ranks. `on_lost` is called once, on any thread, when the group can't go on. `found`
    gets the ranks' cold reads."""

    def __init__(self, options: GatheringOptions) -> None:
        self.options = options
        self.on_lost: Callable[[str], None] = lambda problem: None
        self._secret = options.secret or secrets.token_hex(32).encode()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._failed = threading.Event()
        self._gone = threading.Event()
        self._formed = False
        self.problem = ""
        self._welcome: Welcome | None = None
        self._members = {
            rank: _Member(rank, host, RankState(rank, host.ssh or "localhost"))
            for rank, host in enumerate(options.hosts)
            if rank
        }
        self.found: Callable[[PayloadRead], None] = lambda read: None
        self._listener: socket.socket | None = None

    @property
    def size(self) -> int:
        return len(self.options.hosts)

    @property
    def states(self) -> list[RankState]:
        return [
            replace(member.state, alive=link.last_alive if (link := member.link) else None)
            for member in self._members.values()
        ]

    def begin(self, welcome: Welcome) -> None:
        """Start and meet the ranks for a model; a second call has them load another. Raises
        UsageError if rank 0 can't listen."""
        self._welcome = welcome
        if self._listener is not None:
            for member in self._members.values():
                member.addresses = ()
                if (link := member.link) is not None:
                    link.tell(self._welcome_for(member))
            return
        ip, port = self.options.listens_at, self.options.port
        try:
            self._listener = socket.create_server((ip, port))
        except OSError as error:
            why = one_line(error)
            raise UsageError(f"rank 0 can't listen at {ip} port {port}: {why}") from error
        address = f"{ip}:{self._listener.getsockname()[1]}"
        _log.info("the cluster's ranks are awaited at %s", address)
        self._thread("accepts", self._accept)
        if self.options.secret:
            for rank in self._members:
                by_hand = line_by_hand(self.options, rank, address)
                _log.info("rank %d is to be started by hand: %s", rank, by_hand)
        else:
            commands = command_lines_of(self.options, address, os.getpid())
            for member, command in zip(self._members.values(), commands, strict=True):
                self._thread(f"rank-{member.rank}", self._run, member, command)

    @property
    def is_complete(self) -> bool:
        """Whether all ranks are here and have the model."""
        return all(m.link is not None and m.addresses for m in self._members.values())

    def call_roll(self) -> None:
        for member in self._members.values():
            member.addresses = ()
        self.tell(RollCall())

    def form(
        self, own_addresses: Sequence[str], sums: Sequence[tuple[int, int]] = ()
    ) -> list[Sequence[str]] | None:
        """Tell all ranks the addresses of all, and return them; None if one is gone. A later loss
        loses the group. With `sums` ranks load no model (`Formation`)."""
        with self._lock:
            if not self.is_complete:
                return None
            self._formed = True
            addresses = [
                tuple(own_addresses),
                *(tuple(m.addresses) for m in self._members.values()),
            ]
            for member in self._members.values():
                member.state = replace(member.state, status=RankStatus.HERE, problem="")
        for link in self._links:
            link.patience = FORMING_SECONDS
        self.tell(Formation(tuple(addresses), tuple(sums)))
        for link in self._links:
            link.wait_until_sent()
        return list(addresses)

    def mark_formed(self) -> None:
        for link in self._links:
            link.patience = LOST_SECONDS

    @property
    def _links(self) -> list[Link]:
        links = [member.link for member in self._members.values()]  # other threads remove links
        return [link for link in links if link is not None]

    def tell(self, message: Command | Formation | RollCall) -> None:
        for link in self._links:
            link.tell(message)

    def close(self, seconds: float = 0.0) -> None:
        """End the ranks, after writes to their cold tiers of at most `seconds`, and all
        connections."""
        self._ended.set()
        if self._listener is not None:
            hang_up(self._listener)
            self._listener.close()
        last = time.monotonic() + seconds + _LAST_WORD_SECONDS
        if self._formed and not self.problem:
            self.tell(Closing(seconds))
            for link in self._links:
                link.wait_until_ended(max(0.0, last - time.monotonic()))
        for member in self._members.values():
            if (last_link := member.link) is not None:
                last_link.close()
            elif member.process is not None:
                member.process.terminate()  # it has not connected yet
            if member.process is not None and member.process.stdin is not None:
                member.process.stdin.close()

    # -- the processes of ranks ----------------------------------------------------------

    def _run(self, member: _Member, command: CommandLine) -> None:
        """Start a rank, again whenever it ends, until the group is formed."""
        waits = chain(_AGAIN_SECONDS, repeat(_AGAIN_SECONDS[-1]))
        while not (self._ended.is_set() or self._formed):
            try:
                with command.start(self._secret) as process:
                    member.process = process
                    why = log_output(process, member.rank)
            except OSError as error:
                why = one_line(error)
            if self._formed or self._ended.is_set():
                return
            refused = member.state.status is RankStatus.REFUSED
            status = RankStatus.REFUSED if refused else RankStatus.AWAY
            self._note(member, status, why or "its process has ended")
            self._ended.wait(next(waits))

    # -- meeting -------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        connections = NewConnections(self._meet)
        while not self._ended.is_set():
            try:
                peer, address = self._listener.accept()
            except OSError as error:  # it is closed, or this process has no descriptor left
                if not self._ended.wait(_ACCEPT_AGAIN_SECONDS):
                    _log.warning("no rank can be met: %s", one_line(error))
                continue
            connections.begin(peer, address[0])

    def _meet(self, peer: socket.socket, address: str) -> None:
        member: _Member | None = None
        link: Link | None = None

        def lost(why: str) -> None:
            if member is not None and link is not None:
                self._lose(member, link, why)

        try:
            link = authenticated(peer, self._secret, lost, challenges_first=True)
            member, hello = self._admitted(link)
        except LinkFailed as error:
            _log.warning("a rank at %s is refused: %s", address, error)
            if link is not None:
                link.close()
            return
        link.start(lambda message: self._take(member, link, message))
        _log.info("rank %d is here: %s", member.rank, hello.machine)

    def _admitted(self, link: Link) -> tuple[_Member, Hello]:
        hello = link.receive()
        if not isinstance(hello, Hello):
            raise LinkFailed("it did not say who it is")
        member = self._members.get(hello.rank)
        why = difference(versions(), hello.versions)
        if why and member is not None and member.link is None:
            self._note(member, RankStatus.REFUSED, f"it has {why}")
        if member is None:
            why = f"there is no rank {hello.rank} here"
        with self._lock:  # a rank is admitted once
            if member is not None and not why:
                if member.link is not None or self._formed:
                    why = f"rank {hello.rank} is here already"
                else:
                    member.link, member.addresses = link, ()
                    member.process_of_link = member.process
                    member.state = replace(member.state, status=RankStatus.CHECKING, problem="")
        if why or member is None:
            link.send_now(RankRefusal(why))
            raise LinkFailed(why)
        try:
            link.send_now(self._welcome_for(member))
        except LinkFailed as error:
            self._lose(member, link, str(error))
            raise
        return member, hello

    def _welcome_for(self, member: _Member) -> Welcome:
        assert self._welcome is not None
        return replace(self._welcome, size=self.size, ips=tuple(member.host.ips))

    def _take(self, member: _Member, link: Link, message: object) -> None:
        match message:
            case PayloadRead():
                self.found(message)
            case Ready(addresses):
                with self._lock:
                    if member.link is link:
                        member.state = replace(member.state, status=RankStatus.READY)
                        member.addresses = addresses
            case RankRefusal(why) if self._formed:
                self._failed.wait(CAUSE_SECONDS)
                self._lose(member, link, why, refuses=True)
            case RankRefusal(why):
                with self._lock:
                    member.link, member.addresses = None, ()
                self._note(member, RankStatus.REFUSED, why)

    def _lose(self, member: _Member, link: Link, why: str, *, refuses: bool = False) -> None:
        """Note that a rank is gone, or `refuses`. It may return before the group is formed."""
        problem = f"rank {member.rank} ({member.state.host}) is lost: {why}"
        with self._lock:
            if member.link is not link:
                return  # it has refused before
            member.link, member.addresses = None, ()
            member.state = replace(member.state, status=RankStatus.LOST, problem=why)
        if not self._formed:
            _log.warning("%s", problem)
            link.close()
            if member.process_of_link is not None:
                member.process_of_link.kill()  # it may be stopped; `_run` starts another one
            return
        if not refuses:
            self._gone.set()
        self._fail(problem)

    def step_failed(self, problem: str) -> str:
        """Note a failed step of rank 0. Return why: that, or a rank's loss noted within a
        second."""
        self._failed.wait(CAUSE_SECONDS)
        self._gone.set()
        self._fail(problem)
        return self.problem

    @property
    def is_lost(self) -> bool:
        """Whether a rank of the group is gone. One that only refuses is not."""
        return self._gone.is_set()

    def _fail(self, problem: str) -> None:
        with self._lock:
            tell = not self.problem and not self._ended.is_set()
            self.problem = self.problem or problem
        self._failed.set()
        if tell:
            _log.error("%s", problem)
            self.on_lost(problem)

    def _note(self, member: _Member, status: RankStatus, problem: str) -> None:
        if member.state.problem != problem:
            _log.warning("rank %d (%s): %s", member.rank, member.state.host, problem)
        member.state = replace(member.state, status=status, problem=problem)

    def _thread(self, name: str, work: Callable[..., None], *args: object) -> None:
        threading.Thread(target=work, args=args, name=f"cluster-{name}", daemon=True).start()
