"""Messages of the server to its service manager: sd_notify(3). Without $NOTIFY_SOCKET nothing is
sent."""

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread

_log = logging.getLogger(__name__)
_ABSTRACT = "@"
_PATIENCE_SECONDS = 1.0
_PASSING = {errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


class Notifier:
    """`ready` and `stopping` are never lost, but wait in a thread while the socket is full. One
    thread at a time may call these two."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith(_ABSTRACT):
            self._address = "\0" + self._address[1:]
        for_us = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environ.get("WATCHDOG_USEC", "") if for_us else ""
        self._watchdog_usec = int(usec) if usec.isascii() and usec.isdigit() else 0
        self._unheard = SimpleQueue[str]()
        self._teller: Thread | None = None

    @property
    def ping_seconds(self) -> float:
        """Seconds between two pings, half the watchdog's limit. 0: no watchdog."""
        return self._watchdog_usec / 2e6 if self._address else 0

    def ready(self, status: str) -> None:
        """Send READY with `status` for people, and switch the watchdog on."""
        armed = [f"WATCHDOG_USEC={self._watchdog_usec}"] if self._watchdog_usec else []
        self._insist("READY=1", f"STATUS={status}", *armed)

    def alive(self) -> None:
        self._send("WATCHDOG=1", 0)  # the next one will do

    def stopping(self) -> None:
        self._insist("STOPPING=1", "STATUS=finishing what runs")

    def starting_over(self) -> None:
        """Switch the watchdog off until `ready`: the program starts anew in place."""
        self._send(_message("WATCHDOG_USEC=0", "STATUS=starting again"), _PATIENCE_SECONDS)

    def _insist(self, *assignments: str) -> None:
        """Send in order, later if need be: a unit whose READY=1 is lost would be starting for
        ever."""
        message = _message(*assignments)
        if self._teller is None:
            if self._send(message, 0):
                return
            self._teller = Thread(target=self._tell, name="notify", daemon=True)
            self._teller.start()
        self._unheard.put(message)

    def _tell(self) -> None:
        while True:
            message = self._unheard.get()
            while not self._send(message, None):
                time.sleep(_PATIENCE_SECONDS)

    def _send(self, message: str, patience: float | None) -> bool:
        """Send a datagram within `patience` seconds (None: no limit). Return False if a later
        try may succeed."""
        if not self._address:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(patience)
                sender.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            _log.debug("the service manager can't be told: %s", error)
            return not (isinstance(error, TimeoutError) or error.errno in _PASSING)
        return True


def _message(*assignments: str) -> str:
    return "\n".join(" ".join(text.splitlines()) for text in assignments)


async def keep_alive(notifier: Notifier, alive: Callable[[], bool]) -> None:
    """Ping the watchdog, if any, while `alive()` is true."""
    while notifier.ping_seconds:
        if alive():
            notifier.alive()
        await asyncio.sleep(notifier.ping_seconds)
