"""The part of Hugging Face's HTTP interface that a download of one small repository needs."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


class Handler(BaseHTTPRequestHandler):
    repo_id = ""
    files: dict[str, bytes] = {}  # noqa: RUF012
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        if path == f"/api/models/{self.repo_id}/revision/main":
            names = [{"rfilename": name} for name in self.files]
            self._json({"id": self.repo_id, "sha": COMMIT, "siblings": names})
        elif path == f"/api/models/{self.repo_id}/tree/{COMMIT}":
            self._json([self._entry(name) for name in self.files])
        elif (name := path.removeprefix(f"/{self.repo_id}/resolve/{COMMIT}/")) in self.files:
            self._send(200, self.files[name], {"ETag": f'"{self._oid(name)}"'})
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _entry(self, name: str) -> dict[str, object]:
        size = len(self.files[name])
        return {"type": "file", "path": name, "size": size, "oid": self._oid(name)}

    def _oid(self, name: str) -> str:
        return hashlib.sha1(self.files[name]).hexdigest()

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "X-Repo-Commit": COMMIT}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serve(repo_id: str, files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """The server's address, and the list of what it has been asked."""
    asked: list[str] = []
    handler = type("Repo", (Handler,), {"repo_id": repo_id, "files": files, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()
