"""The part of Hugging Face's HTTP interface that a search and a download of one small repository
need.

Names in `large` are told with their sha256, as the hub does of LFS files. `Faults` says what goes
wrong: connections that break off or stall after so many bytes, bytes that are damaged, sizes that
lie, answers that are slow.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from omlx_server.models.hub.hub import Hub

COMMIT = "c" * 40
_SLICE_SECONDS = 0.02


HubAt = Callable[..., Hub]
"""The hub is at this address from now on; a second argument has the pauses of its downloads."""


@dataclass
class Faults:
    """`cuts`: bytes of a body after which the connection breaks, one per answer; `damaged`: how
    many answers of large files are wrong; `claimed`: sizes that are told instead of the real;
    `busy`: the statuses of answers to come instead of large files; `most`: how many large answers
    there are at once before others get a 429; `gate`: large answers wait for so many of each other;
    `whole_only`: ranges are not known. `delay`: seconds before an answer; `rate`: the bytes a
    second of each connection. `cdn`: the address to which requests of large files are sent, with a
    signature. `heads`: the commits of main that are told one after the other, before the real.
    `content_range`: the header of that name, "" for none."""

    cuts: list[int] = field(default_factory=list)
    damaged: int = 0
    claimed: dict[str, int] = field(default_factory=dict)
    error_code: str = ""
    stall_after: int = 0
    busy: list[int] = field(default_factory=list)
    most: int = 1000
    gate: threading.Barrier | None = None
    whole_only: bool = False
    delay: float = 0.0
    rate: float = 0.0
    cdn: str = ""
    heads: list[str] = field(default_factory=list)
    content_range: str = "bytes {first}-{last}/{size}"


@dataclass
class Seen:
    """What a hub has seen: `running` large answers now, `peak` at most; `tokens` that came with
    requests of large files."""

    running: int = 0
    peak: int = 0
    tokens: list[str | None] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Handler(BaseHTTPRequestHandler):
    repo_id = ""
    files: dict[str, bytes] = {}  # noqa: RUF012
    large: frozenset[str] = frozenset()
    asked: list[str] = []  # noqa: RUF012
    faults = Faults()
    seen = Seen()
    revisions: frozenset[str] = frozenset()
    models: list[dict[str, object]] = []  # noqa: RUF012
    gguf: dict[str, object] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        asked_range = self.headers.get("Range", "")
        if self.command == "GET":
            self.asked.append(f"{self.path} {asked_range}".strip())
        time.sleep(self.faults.delay)
        path = self.path.partition("?")[0]
        if self.faults.error_code:
            self._send(403, b"{}", {"X-Error-Code": self.faults.error_code})
        elif path == "/api/models":
            self._json(self.models)
        elif path.startswith(info := f"/api/models/{self.repo_id}/revision/"):
            self._info(path.removeprefix(info))
        elif path == f"/api/models/{self.repo_id}/tree/{COMMIT}":
            self._tree()
        elif (name := path.removeprefix(f"/{self.repo_id}/resolve/{COMMIT}/")) in self.files:
            self._file(name, asked_range)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _info(self, revision: str) -> None:
        if revision not in {"main", COMMIT, *self.revisions}:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        heads = self.faults.heads
        sha = heads.pop(0) if revision == "main" and heads else COMMIT
        names = [{"rfilename": name} for name in self.files]
        about = {"gguf": self.gguf} if self.gguf else {}
        self._json({"id": self.repo_id, "sha": sha, "siblings": names, **about})

    def _tree(self) -> None:
        """The files, in two pages."""
        names, half = list(self.files), len(self.files) // 2
        is_second = "cursor=" in self.path
        url = f"http://{self.headers['Host']}{self.path}&cursor=x"
        told = {} if is_second else {"Link": f'<{url}>; rel="next"'}
        page = names[half:] if is_second else names[:half]
        self._json([self._entry(name) for name in page], told)

    def _file(self, name: str, asked_range: str) -> None:
        body = self.files[name]
        if name not in self.large or self.command == "HEAD":
            self._send(200, body, {"ETag": f'"{self._oid(name)}"'})
            return
        with self.seen.lock:
            self.seen.tokens.append(self.headers.get("Authorization"))
        if self.faults.cdn:
            self._send(302, b"", {"Location": f"{self.faults.cdn}{self.path}?Signature=x"})
            return
        with self._counted() as is_let_in:
            if self.faults.gate is not None:
                self.faults.gate.wait(20)
            if self.faults.busy:
                self._send(self.faults.busy.pop(0), b"{}", {})
            elif not is_let_in:
                self._send(429, b"{}", {})
            else:
                self._large(body, "" if self.faults.whole_only else asked_range)

    @contextmanager
    def _counted(self) -> Iterator[bool]:
        seen = self.seen
        with seen.lock:
            is_let_in = seen.running < self.faults.most
            seen.running += is_let_in
            seen.peak = max(seen.peak, seen.running)
        try:
            yield is_let_in
        finally:
            with seen.lock:
                seen.running -= is_let_in

    def _large(self, body: bytes, asked_range: str) -> None:
        size, first, last = len(body), 0, len(body) - 1
        if asked_range:
            start, _, end = asked_range.removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end or last), last)
            if first >= size:
                self._send(416, b"", {"Content-Range": f"bytes */{size}"})
                return
        body = body[first : last + 1]
        if self.faults.damaged:
            self.faults.damaged -= 1
            body = bytes([body[0] ^ 1]) + body[1:]
        content_range = self.faults.content_range.format(first=first, last=last, size=size)
        told = {"Content-Range": content_range} if asked_range else {}
        if self.faults.stall_after:
            self._stall(body, told)
            return
        cut = self.faults.cuts.pop(0) if self.faults.cuts else None
        self._send(206 if asked_range else 200, body, told, cut)

    def _stall(self, body: bytes, told: dict[str, str]) -> None:
        """Until nobody listens any more, or a test has waited long enough."""
        self._head(206 if told else 200, body, told)
        self.wfile.write(body[: self.faults.stall_after])
        self.connection.settimeout(20)
        with suppress(OSError):
            self.connection.recv(1)

    def _entry(self, name: str) -> dict[str, object]:
        size = self.faults.claimed.get(name, len(self.files[name]))
        entry: dict[str, object] = {"type": "file", "path": name, "size": size}
        if name in self.large:
            entry["lfs"] = {"oid": self._oid(name), "size": size, "pointerSize": 130}
        blob = f"blob {size}\0".encode() + self.files[name]
        return entry | {"oid": hashlib.sha1(blob).hexdigest()}

    def _oid(self, name: str) -> str:
        method = hashlib.sha256 if name in self.large else hashlib.sha1
        return method(self.files[name]).hexdigest()

    def _json(self, value: object, told: dict[str, str] | None = None) -> None:
        headers = {"Content-Type": "application/json", **(told or {})}
        self._send(200, json.dumps(value).encode(), headers)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None
    ) -> None:
        self._head(status, body, headers)
        if self.command == "HEAD":
            return
        slices = max(int(self.faults.rate * _SLICE_SECONDS), 1) if self.faults.rate else len(body)
        sent = body[:cut]
        for start in range(0, len(sent), slices or 1):
            begun = time.monotonic()
            with suppress(ConnectionError):
                self.wfile.write(sent[start : start + slices])
            if self.faults.rate:
                time.sleep(max(begun + _SLICE_SECONDS - time.monotonic(), 0.0))

    def _head(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "X-Repo-Commit": COMMIT}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()


class _Server(ThreadingHTTPServer):
    request_queue_size = 64
    daemon_threads = True


@contextmanager
def serve(
    repo_id: str,
    files: dict[str, bytes],
    large: frozenset[str] = frozenset(),
    faults: Faults | None = None,
    seen: Seen | None = None,
    revisions: frozenset[str] = frozenset(),
    models: Sequence[dict[str, object]] = (),
    gguf: dict[str, object] | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """The server's address, and the list of what it has been asked. `models`: what a search
    finds; `gguf`: what it tells of the repository's GGUF files."""
    asked: list[str] = []
    fields: dict[str, object] = {"repo_id": repo_id, "files": files, "large": large}
    fields |= {"asked": asked, "faults": faults or Faults(), "seen": seen or Seen()}
    fields |= {"revisions": revisions, "models": list(models), "gguf": gguf or {}}
    handler = type("Repo", (Handler,), fields)
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
