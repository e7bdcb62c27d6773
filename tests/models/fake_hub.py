"""The part of Hugging Face's HTTP interface that a download of one small repository needs.

Names in `large` are told with their sha256, as the hub does of LFS files. `Faults` says what goes
wrong: connections that break off or stall after so many bytes, bytes that are damaged, sizes that
lie.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from omlx_server.models.hub.hub import Hub

COMMIT = "c" * 40


HubAt = Callable[..., Hub]
"""The hub is at this address from now on; a second argument has the pauses of its downloads."""


@dataclass
class Faults:
    """`cuts`: bytes of a body after which the connection breaks, one per answer; `damaged`: how
    many answers of large files are wrong; `claimed`: sizes that are told instead of the real."""

    cuts: list[int] = field(default_factory=list)
    damaged: int = 0
    claimed: dict[str, int] = field(default_factory=dict)
    error_code: str = ""
    stall_after: int = 0


class Handler(BaseHTTPRequestHandler):
    repo_id = ""
    files: dict[str, bytes] = {}  # noqa: RUF012
    large: frozenset[str] = frozenset()
    asked: list[str] = []  # noqa: RUF012
    faults = Faults()

    def do_GET(self) -> None:
        asked_range = self.headers.get("Range", "")
        if self.command == "GET":
            self.asked.append(f"{self.path} {asked_range}".strip())
        path = self.path.partition("?")[0]
        if self.faults.error_code:
            self._send(403, b"{}", {"X-Error-Code": self.faults.error_code})
        elif path == f"/api/models/{self.repo_id}/revision/main":
            names = [{"rfilename": name} for name in self.files]
            self._json({"id": self.repo_id, "sha": COMMIT, "siblings": names})
        elif path == f"/api/models/{self.repo_id}/tree/{COMMIT}":
            self._json([self._entry(name) for name in self.files])
        elif (name := path.removeprefix(f"/{self.repo_id}/resolve/{COMMIT}/")) in self.files:
            self._file(name, int(asked_range.removeprefix("bytes=").rstrip("-") or 0))
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _file(self, name: str, start: int) -> None:
        body = self.files[name]
        is_large = name in self.large and self.command == "GET"
        if is_large and self.faults.damaged:
            self.faults.damaged -= 1
            body = bytes(byte ^ 1 for byte in body)
        cut = self.faults.cuts.pop(0) if is_large and self.faults.cuts else None
        if is_large and self.faults.stall_after:
            self._stall(body)
            return
        status = 206 if "Range" in self.headers else 200
        self._send(status, body[start:], {"ETag": f'"{self._oid(name)}"'}, cut)

    def _stall(self, body: bytes) -> None:
        """Until nobody listens any more, or a test has waited long enough."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.faults.stall_after])
        self.connection.settimeout(20)
        with suppress(OSError):
            self.connection.recv(1)

    def _entry(self, name: str) -> dict[str, object]:
        size = self.faults.claimed.get(name, len(self.files[name]))
        entry: dict[str, object] = {"type": "file", "path": name, "size": size}
        if name in self.large:
            entry["lfs"] = {"oid": self._oid(name), "size": size, "pointerSize": 130}
        return entry | {"oid": hashlib.sha1(self.files[name]).hexdigest()}

    def _oid(self, name: str) -> str:
        method = hashlib.sha256 if name in self.large else hashlib.sha1
        return method(self.files[name]).hexdigest()

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {**headers, "X-Repo-Commit": COMMIT}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])


@contextmanager
def serve(
    repo_id: str,
    files: dict[str, bytes],
    large: frozenset[str] = frozenset(),
    faults: Faults | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """The server's address, and the list of what it has been asked."""
    asked: list[str] = []
    fields = {"repo_id": repo_id, "files": files, "large": large, "asked": asked}
    handler = type("Repo", (Handler,), {**fields, "faults": faults or Faults()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
