"""What the server tells its service manager: sd_notify(3), in the few lines that it takes.

Without $NOTIFY_SOCKET, as under launchd or in a terminal, all of it does nothing.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)
_ABSTRACT = "@"
_PATIENCE_SECONDS = 1.0


class Notifier:
    """One server's word to its manager. Any thread; keeps no state but where to send it."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith(_ABSTRACT):
            self._address = "\0" + self._address[1:]
        for_us = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environ.get("WATCHDOG_USEC", "") if for_us else ""
        self._watchdog_usec = int(usec) if usec.isascii() and usec.isdigit() else 0

    @property
    def ping_seconds(self) -> float:
        """How often the watchdog wants to hear from us: twice as often as it must. 0: never."""
        return self._watchdog_usec / 2e6 if self._address else 0

    def ready(self, status: str) -> None:
        """From here on the watchdog counts, even if `starting_over` has switched it off."""
        armed = [f"WATCHDOG_USEC={self._watchdog_usec}"] if self._watchdog_usec else []
        self._send("READY=1", f"STATUS={status}", *armed)

    def alive(self) -> None:
        self._send("WATCHDOG=1", patience=0)  # the next one will do

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=finishing what runs")

    def starting_over(self) -> None:
        """The process will begin anew in place: until it is ready again nobody may kill it."""
        self._send("WATCHDOG_USEC=0", "STATUS=starting again")

    def _send(self, *assignments: str, patience: float = _PATIENCE_SECONDS) -> None:
        """One datagram. A manager that does not listen, or has no time to read, is no reason to
        fail, or to wait for it: the system keeps ten of them."""
        if not self._address:
            return
        message = "\n".join(" ".join(text.splitlines()) for text in assignments)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(patience)
                sender.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            _log.debug("the service manager can't be told: %s", error)


async def keep_alive(notifier: Notifier, alive: Callable[[], bool]) -> None:
    """Ping the watchdog for as long as `alive()`. Its silence then gets the process restarted."""
    while notifier.ping_seconds:
        if alive():
            notifier.alive()
        await asyncio.sleep(notifier.ping_seconds)
