"""What the clients of a stress test count, with a server that answers as it is told."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from omlx_server.cli.look import stress_load
from omlx_server.cli.look.stress_load import StressClients, StressPlan
from omlx_server.cli.server_client.http import server_at
from tests.api.harness import wait_for
from tests.cli.json_handler import JsonHandler

PLAN = StressPlan(prompts=4, most_tokens=40)


class Answers(JsonHandler):
    """Takes prompts of up to `most` tokens, and says `text`."""

    most = 1000
    text = "yes"
    finish_reason = "length"
    error: tuple[int, str] | None = None
    seconds = 0.0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(self.seconds)
        tokens = len(body["prompt"])
        if self.path == "/tokenize":
            self.say(200, {"tokens": [5, 6, 7], "max_model_len": 1064})
        elif self.error is not None:
            self.say(self.error[0], {"error": {"code": self.error[1]}})
        elif tokens > self.most:
            self.say(503, {"error": {"code": "insufficient_memory"}})
        else:
            choice = {"text": self.text, "finish_reason": self.finish_reason}
            usage = {"prompt_tokens": tokens, "total_tokens": tokens + 64}
            self.say(200, {"choices": [choice], "usage": usage})


@contextmanager
def loading(**fields: Any) -> Iterator[tuple[StressClients, type[Answers]]]:
    handler = type("Handler", (Answers,), fields)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            client = server_at(f"http://127.0.0.1:{server.server_port}", "")
            clients = StressClients(PLAN)
            clients.server, clients.model, clients.end = client, "m", time.monotonic() + 60
            clients.learn()
            yield clients, handler
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress_load, "_PAUSE_SECONDS", 0.0)


def test_an_answer_unlike_the_first_one_to_its_prompt_is_counted() -> None:
    with loading() as (load, handler):
        for number in (0, 1, 0, 1):
            load.ask(number, 10)
        assert (load.figures.requests, load.figures.different) == (4, 0)
        assert load.figures.tokens == 4 * 74
        handler.text = "no"
        load.ask(0, 10)
        load.ask(0, 11)
        assert (load.figures.requests, load.figures.different) == (6, 1)


@pytest.mark.parametrize(
    ("fields", "errors", "refused"),
    [
        ({"error": (500, "model_error")}, {"model_error": 2}, {}),
        ({"finish_reason": "model_error"}, {"model_error": 2}, {}),
        ({"error": (503, "insufficient_memory")}, {}, {"insufficient_memory": 2}),
        ({"error": (429, "queue_full")}, {}, {"queue_full": 2}),
        ({"error": (502, "")}, {"http_502": 2}, {}),
    ],
)
def test_errors_are_counted_by_code_and_refusals_by_themselves(
    fields: dict[str, Any], errors: dict[str, int], refused: dict[str, int]
) -> None:
    with loading(**fields) as (load, _):
        load.ask(0, 10)
        load.ask(0, 10)
        assert (load.figures.errors, load.figures.refused) == (errors, refused)


def test_a_request_that_the_end_ends_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress_load, "_LATE_SECONDS", 0.05)
    with loading() as (load, handler):
        handler.seconds = 0.3
        load.end = time.monotonic()
        load.ask(0, 10)
        assert (load.figures.unfinished, load.figures.errors) == (1, {})
        load.server = server_at("http://127.0.0.1:1", "")
        load.end = time.monotonic() + 60
        load.ask(0, 10)
        assert (load.figures.unfinished, load.figures.errors) == (1, {"connection": 1})


def test_the_longest_prompt_is_the_context_or_what_memory_takes() -> None:
    for most, longest in ((1000, 1000), (800, 722)):
        with loading(most=most) as (load, _):
            load.start(load.ask_longest)
            wait_for(lambda: load.figures.requests)
            load.stop()
            assert load.figures.longest_prompt == longest
            assert not load.figures.refused


def test_clients_ask_all_prompts_in_turn() -> None:
    with loading() as (load, _):
        load.start(lambda: load.ask_in_turn(3))
        wait_for(lambda: load.figures.requests >= 8)
        assert load.are_asking
        load.stop()
        assert sorted(load.answers) == [(0, 10), (1, 20), (2, 30), (3, 40)]
