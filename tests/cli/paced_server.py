"""Another program's server: speaks the chat API in its own time, one event after the other.

A word is a token. Reading one takes `read` seconds unless the server knows the beginning, writing
one takes `write`. It keeps what it was asked.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from tests.cli.json_handler import JsonHandler


@dataclass
class Behaviour:
    read: float = 0.00002
    write: float = 0.001
    context: int = 100_000
    takes_ignore_eos: bool = True
    counts: bool = True
    at_once: int = 64
    asked: list[dict[str, Any]] = field(default_factory=list)
    known: set[tuple[str, ...]] = field(default_factory=set)
    headers: list[str] = field(default_factory=list)


class PacedServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour = behaviour
        self.turns = threading.Semaphore(behaviour.at_once)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class Handler(JsonHandler):
    protocol_version = "HTTP/1.1"
    server: PacedServer

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "paced"}, {"id": "other"}]}
        self.say(200, models) if self.path == "/v1/models" else self.say(404, {"no": "thing"})

    def do_POST(self) -> None:
        how = self.server.behaviour
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        how.asked.append(body)
        how.headers.append(self.headers.get("Authorization", ""))
        words = tuple(" ".join(m["content"] for m in body["messages"]).split())
        if "ignore_eos" in body and not how.takes_ignore_eos:
            self.say(400, {"error": {"message": "unknown field ignore_eos"}})
        elif len(words) > how.context:
            self.say(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
        else:
            with self.server.turns:
                self._answer(words, body.get("max_tokens", 100))

    def _answer(self, words: tuple[str, ...], count: int) -> None:
        how = self.server.behaviour
        cached = max((len(k) for k in how.known if words[: len(k)] == k), default=0)
        time.sleep(how.read * (len(words) - min(cached, len(words) - 1)))
        how.known.add(words)
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for i in range(count):
            if i:
                time.sleep(how.write)
            self._event({"choices": [{"delta": {"content": f"w{i} "}}]})
        self._event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        if how.counts:
            details = {"cached_tokens": min(cached, len(words) - 1)}
            usage = {"prompt_tokens": len(words), "completion_tokens": count}
            self._event({"choices": [], "usage": usage | {"prompt_tokens_details": details}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: object) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()


@contextmanager
def paced(**behaviour: Any) -> Iterator[PacedServer]:
    server = PacedServer(Behaviour(**behaviour))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
