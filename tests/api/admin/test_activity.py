"""What a server tells of its requests and its memory, over HTTP."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.api.admin.asking import OWNER, states, told
from tests.api.harness import CHAT, UNPROBED, Json, ServerProcess, serving, wait_for

LONG = "a text that is read again and again " * 20
MARKED = "Zebra-in-the-prompt"


@pytest.fixture(scope="module")
def server(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """At most two rows, so that a third request waits."""
    sets = [f"models.dirs={tiny_models}", UNPROBED, "scheduler.max_batch_size=2"]
    with serving("org/tiny", tmp_path_factory.mktemp("activity"), *sets) as server:
        yield server


@contextmanager
def answering(server: ServerProcess, count: int) -> Iterator[None]:
    """So many long answers are streamed meanwhile: one that has ended begins again."""
    ends = threading.Event()

    def stream() -> None:
        body = server.body(f"{MARKED} {LONG}", max_tokens=3500, ignore_eos=True, stream=True)
        while not ends.is_set():
            with server.http.stream("POST", f"{server.url}{CHAT}", json=body) as answer:
                for _ in answer.iter_lines():
                    if ends.is_set():
                        return

    threads = [threading.Thread(target=stream) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        server.wait_idle()


def test_requests_at_work_are_lanes(server: ServerProcess) -> None:
    with answering(server, 3):

        def look() -> list[Json] | None:
            lanes: list[Json] = told(server, "requests")["at_work"]
            places = sorted((lane["place"], lane["waits_for"] or "") for lane in lanes)
            # The scheduler is asked once a second: before that a place is known by the tokens.
            expected = [("decoding", ""), ("decoding", ""), ("queued", "rows")]
            begun = [lane for lane in lanes if lane["output_tokens"]]
            return lanes if places == expected and len(begun) == 2 else None

        lanes = wait_for(look)
    for lane in lanes:
        assert lane["model"] == "org/tiny" and lane["choices"] == 1
        assert lane["id"].startswith("req_") and lane["seconds"] > 0
        assert lane["prompt_tokens"] > 500
    rows = [lane for lane in lanes if lane["place"] == "decoding"]
    assert all(row["output_tokens"] > 0 and row["waits_for"] is None for row in rows)
    assert all(row["computed_tokens"] >= row["prompt_tokens"] - 1 for row in rows)
    [queued] = [lane for lane in lanes if lane["place"] == "queued"]
    assert queued["output_tokens"] == 0
    assert told(server, "requests")["at_work"] == []


def test_requests_that_have_ended_are_told_newest_first(server: ServerProcess) -> None:
    before = time.time()
    server.chat(LONG, max_tokens=50, ignore_eos=True)
    server.chat(LONG, max_tokens=60, ignore_eos=True)
    refused = server.post({**server.body("Hi"), "model": "nobody"})
    assert refused.status_code == 404
    newest, second, first = told(server, "requests")["done"][:3]
    assert (newest["status"], newest["error"]) == (404, "model_not_found")
    assert newest["model"] is newest["completion_tokens"] is newest["ttft_seconds"] is None
    assert (second["completion_tokens"], first["completion_tokens"]) == (60, 50)
    assert second["cached_tokens"] > 500 and second["finish_reason"] == "length"
    assert second["id"] != first["id"] and second["route"] == CHAT
    for one in (first, second):
        assert one["model"] == "org/tiny" and one["error"] is None
        assert before - 1 < one["at"] < time.time()
        assert 0 < one["ttft_seconds"] < one["seconds"] and one["tokens_per_second"] > 0


def test_the_last_two_hundred_are_kept_and_orders_are_none_of_them(server: ServerProcess) -> None:
    for _ in range(205):
        server.http.post(f"{server.url}/tokenize", json={"prompt": "a"})
    server.http.post(f"{server.url}/admin/models/load", json={"model": "org/tiny"}, headers=OWNER)
    done = told(server, "requests")["done"]
    assert len(done) == 200 and {one["route"] for one in done} == {"/tokenize"}


def shared_now(server: ServerProcess) -> list[Json]:
    """The newest sample, if sequences at work refer to blocks."""
    newest: Json = told(server, "memory")["history"][-1]
    return [newest] if newest["shared"] else []


def test_the_memory_is_told_line_by_line(server: ServerProcess) -> None:
    server.chat(LONG, max_tokens=2)

    def look() -> list[Json] | None:
        history: list[Json] = told(server, "memory")["history"]
        return history if len(history) > 2 and history[-1]["blocks"] else None

    history = wait_for(look)
    assert told(server, "memory")["every_seconds"] == 2
    with answering(server, 1):
        history += [wait_for(lambda: next(iter(shared_now(server)), None))]
    for sample in history:
        parts = ("weights", "live", "shared", "blocks", "checkpoints", "pending", "step", "free")
        assert sum(sample[part] for part in parts) == sample["limit"]
        assert min(sample.values()) >= 0
    times = [sample["at"] for sample in history]
    assert times == sorted(times) and times[-1] > time.time() - 5


def test_the_live_stream_tells_all_once_a_second(server: ServerProcess) -> None:
    server.chat(LONG, max_tokens=2)
    began = time.monotonic()
    first, second = states(server, 2)
    assert 0.9 < time.monotonic() - began < 30
    assert first["memory"]["weights"] > 0 and first["requests"] == {"at_work": []}
    assert first["done"] and second["done"] == []
    [model] = [one for one in first["models"] if one["name"] == "org/tiny"]
    assert (model["state"], model["kind"]) == ("loaded", "chat")
    [cache] = first["cache"]
    assert cache["model"] == "org/tiny" and cache["counters"]["blocks"] > 0
    assert cache["counters"]["found_tokens"] <= cache["counters"]["looked_up_tokens"]


def test_a_listener_holds_up_no_shutdown(tiny_models: Path, tmp_path: Path) -> None:
    sets = [f"models.dirs={tiny_models}", UNPROBED, "server.shutdown_grace_seconds=60"]
    with serving("org/tiny", tmp_path, *sets) as server:
        with server.http.stream("GET", f"{server.url}/admin/live", headers=OWNER) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: state"
            server.terminate()
            began = time.monotonic()
            list(lines)  # the stream ends in order
            assert time.monotonic() - began < 30
        assert server.wait(30) == 0


def test_no_text_of_a_prompt_is_told(server: ServerProcess) -> None:
    with answering(server, 1):
        wait_for(lambda: told(server, "requests")["at_work"])
        said = server.http.get(f"{server.url}/admin/live?events=1", headers=OWNER).text
        said += server.http.get(f"{server.url}/admin/requests", headers=OWNER).text
    said += server.http.get(f"{server.url}/admin/requests", headers=OWNER).text
    assert "org/tiny" in said and MARKED not in said


@pytest.mark.parametrize("path", ["memory", "requests", "live?events=1"])
def test_only_the_owner_is_told(server: ServerProcess, path: str) -> None:
    assert server.http.get(f"{server.url}/admin/{path}").status_code == 401


@pytest.mark.parametrize("events", ["x", "-1", "1e3", "٣"])
def test_a_number_of_events_must_be_one(server: ServerProcess, events: str) -> None:
    answer = server.http.get(f"{server.url}/admin/live", params={"events": events}, headers=OWNER)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "events")
