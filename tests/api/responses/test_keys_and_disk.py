"""Servers of their own: several API keys, responses on disk, answers that break off."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.harness import Json, ServerProcess, assert_envelope, serving, wait_for
from tests.api.responses import judge
from tests.api.responses.asking import RESPONSES, body, events, get, post, text_of

ALICE, BOB = "alice-key", "bob-key"


@pytest.fixture(scope="module")
def sets(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    where = tmp_path_factory.mktemp("kept") / "responses"
    return [
        f"models.dirs={tiny_models}",
        f"auth.api_keys={ALICE},{BOB}",
        "responses.store=disk",
        f"responses.directory={where}",
        "server.request_timeout_seconds=1.5",
        "server.shutdown_grace_seconds=0.5",
    ]


@pytest.fixture(scope="module")
def disk(sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving("org/tiny", tmp_path_factory.mktemp("first"), *sets) as server:
        yield server


def ask(server: ServerProcess, **fields: Any) -> Json:
    """A response of ALICE. Once in five times it comes in its time: the machine may pause."""
    answers = (post(server, body(server, **fields), key=ALICE) for _ in range(5))
    answer = next(answer for answer in answers if answer.status_code != 504)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def test_a_response_belongs_to_the_key_that_made_it(disk: ServerProcess) -> None:
    found = ask(disk)
    id, item = found["id"], found["output"][0]["id"]
    assert get(disk, id, ALICE).json() == found
    for path in (id, f"{id}/input_items"):
        assert_envelope(get(disk, path, BOB), 404)
    assert_envelope(post(disk, {}, f"{RESPONSES}/{id}/cancel", BOB), 404)
    assert_envelope(post(disk, body(disk, previous_response_id=id), key=BOB), 400)
    assert_envelope(post(disk, body(disk, input=[{"id": item}]), key=BOB), 404)
    headers = {"authorization": f"Bearer {BOB}"}
    gone = disk.http.delete(f"{disk.url}{RESPONSES}/{id}", headers=headers)
    assert_envelope(gone, 404)
    assert ask(disk, previous_response_id=id)
    assert_envelope(get(disk, id, "nobody"), 401)


def test_a_stream_that_runs_out_of_its_time_fails(disk: ServerProcess) -> None:
    answer = post(disk, body(disk, stream=True, max_output_tokens=4000), key=ALICE)
    found = events(answer.text)
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    error, failed = next(e for e in found if e["type"] == "error"), found[-1]
    assert error["code"] == "deadline_exceeded"
    assert failed["type"] == "response.failed"
    response = judge.response(failed["response"])
    assert response.error and response.error.code == "server_error"
    assert response.output_text
    assert get(disk, response.id, ALICE).json() == failed["response"]


def test_a_whole_answer_that_runs_out_of_its_time_is_an_error(disk: ServerProcess) -> None:
    answer = post(disk, body(disk, max_output_tokens=4000), key=ALICE)
    assert assert_envelope(answer, 504)["code"] == "deadline_exceeded"


def test_responses_outlive_the_server(
    sets: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And what outlasts its end is told so."""
    with serving("org/tiny", tmp_path_factory.mktemp("before"), *sets) as server:
        found = ask(server)
        running: list[str] = []
        fields = body(server, stream=True, max_output_tokens=4000)

        def listen() -> None:
            with httpx.Client(timeout=60, trust_env=False) as http:
                headers = {"authorization": f"Bearer {ALICE}"}
                url = f"{server.url}{RESPONSES}"
                running.append(http.post(url, json=fields, headers=headers).text)

        listener = threading.Thread(target=listen)
        listener.start()
        wait_for(lambda: server.load()["running"])
        server.terminate()
        listener.join(60)
        assert server.wait() == 0
    assert [e["type"] for e in events(running[0])][-1] == "response.failed"
    with serving("org/tiny", tmp_path_factory.mktemp("after"), *sets) as server:
        assert get(server, found["id"], ALICE).json() == found
        more = ask(server, input="And?", previous_response_id=found["id"])
        assert text_of(more)
