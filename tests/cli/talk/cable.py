"""A TCP connection to a server that can be cut and joined: to a client, a server that is lost."""

import socket
import sys
import threading
from contextlib import suppress

_ANY = ("127.0.0.1", 0)


class Cable:
    """Carries what is sent to its port to `port` of this machine, and back: `most` bytes of what
    comes back over a connection, and then no more until it is cut."""

    def __init__(self, port: int, most: int) -> None:
        self._to = ("127.0.0.1", port)
        self._most = most
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
                for way in ((client, server, sys.maxsize), (server, client, self._most)):
                    threading.Thread(target=_carry, args=way, daemon=True).start()


def _carry(source: socket.socket, to: socket.socket, most: int) -> None:
    with suppress(OSError):
        while data := source.recv(min(65536, most)):
            to.sendall(data)
            most -= len(data)
            if not most:
                return
        to.shutdown(socket.SHUT_WR)
