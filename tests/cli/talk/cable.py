"""A TCP connection to a server that can be cut and joined: to a client, a server that is lost."""

import socket
import threading
import time
from contextlib import suppress

_ANY = ("127.0.0.1", 0)
_BYTES, _SECONDS = 1000, 0.05  # so many bytes take so long


class Cable:
    """Carries what is sent to its port to the `url` of a server of this machine, and slowly back,
    so that a long answer takes half a minute."""

    def __init__(self, url: str) -> None:
        self._to = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._at = _ANY
        self._open: list[socket.socket] = []
        self.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._at[1]}"

    def join(self) -> None:
        """Take connections, at the same port as before."""
        listener = socket.create_server(self._at, reuse_port=False)
        self._at = listener.getsockname()
        self._open = [listener]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self._to)
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=_carry, args=pair, daemon=True).start()


def _carry(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_BYTES):
            to.sendall(data)
            time.sleep(_SECONDS)
        to.shutdown(socket.SHUT_WR)
