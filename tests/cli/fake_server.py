"""A program that speaks just enough of the chat API, and takes the flags of `omlx-server serve`.

The last message of a request chooses what happens; FAKE_* in the environment chooses the rest.
"""

import itertools
import json
import os
import signal
import sys
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import Any

from omlx_server.process.running import announcing

ANSWER = os.environ.get("FAKE_ANSWER", "It is Paris.")
KEY = os.environ.get("FAKE_KEY", "")
CONTEXT = int(os.environ.get("FAKE_CONTEXT", "0")) or None
PAGE = os.environ.get("FAKE_PAGE", "")
TOKEN = os.environ.get("FAKE_TOKEN", "")
CODES = itertools.count(1)
REFUSED = {"role": "system", "content": "refuse"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/health/ready":
            self._json(200, {"status": "ready"})
        elif self.path == "/v1/models":
            model = {"id": "starter", "max_model_len": CONTEXT}
            self._json(200, {"object": "list", "data": [model]})
        elif self.path == "/web/index.html" and PAGE:
            self._body(200, b"<!doctype html>")
        else:
            self._json(404, {"nothing": "here"})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/admin/sign-in-code":
            is_owner = TOKEN and self.headers.get("X-Admin-Token") == TOKEN
            self._json(200, {"code": f"code-{next(CODES)}"}) if is_owner else self._error(401, "no")
            return
        last = _text_of(request["messages"][-1]["content"])
        if KEY and self.headers.get("Authorization") != f"Bearer {KEY}":
            self._error(401, "no")
        elif last == "refuse" or request["messages"][0] == REFUSED:
            self._error(400, "the model refuses")
        elif last == "html":
            self._body(200, b"data: <html>\n\n")
        else:
            self._stream(last, request)

    def _stream(self, last: str, request: dict[str, Any]) -> None:
        messages = request["messages"]
        answers = {"count": str(len(messages)), "lines": "one\u2028two\x85three"}
        answer = (answers | {"repeat": json.dumps(request)}).get(last, ANSWER)
        deltas = [{"role": "assistant", "content": ""}, *({"content": c} for c in answer)]
        if last == "think and crash":
            deltas = [{"reasoning": "Hm"}, {"reasoning": "m."}]
        events: list[dict[str, Any]] = [{"choices": [{"delta": d}]} for d in deltas]
        usage: dict[str, Any] = {
            "prompt_tokens": 10 * len(messages),
            "completion_tokens": len(answer),
            "prompt_tokens_details": {"cached_tokens": 10 * (len(messages) - 1)},
        }
        if last == "filter":
            events.append({"choices": [{"delta": {}, "finish_reason": "content_filter"}]})
        if last == "odd":
            usage = {"prompt_tokens": "many", "completion_tokens": None, "prompt_tokens_details": 1}
            events.append({"choices": [{"delta": {}, "finish_reason": 7}]})
        if last.endswith("crash"):
            events.append({"error": {"message": "the engine fell over"}})
        text = ": keepalive\n\n" + "".join(_event(event) for event in events)
        if last != "cut":
            text += _event({"choices": [], "usage": usage}) + "data: [DONE]\n\n"
        self._body(200, text.encode())

    def _error(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message}})

    def _json(self, status: int, body: object) -> None:
        self._body(status, json.dumps(body).encode())

    def _body(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _text_of(content: str | list[dict[str, Any]]) -> str:
    """The text of a message, whatever stands beside it."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def _event(event: object) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


def _stop(number: int, frame: FrameType | None) -> None:
    sys.stderr.write("fake server: stopped\n")
    sys.exit(int(os.environ.get("FAKE_EXIT_CODE", "0")))


if __name__ == "__main__":
    if "FAKE_DEAD" in os.environ:
        sys.exit(7)
    signal.signal(signal.SIGTERM, _stop)
    port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 0
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    url = f"http://127.0.0.1:{server.server_port}"
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    with announcing(url) if "FAKE_ANNOUNCES" in os.environ else nullcontext():
        server.serve_forever()
