"""Servers of their own: several API keys, responses on disk, answers that break off."""

import hashlib
import hmac
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.api.harness import (
    UNPROBED,
    Json,
    ServerProcess,
    assert_envelope,
    samples,
    serving,
    wait_for,
)
from tests.api.responses import judge
from tests.api.responses.asking import RESPONSES, body, events, get, post, text_of

ALICE, BOB = "alice-key", "bob-key"
LARGE = 1 << 20  # bytes that all stored responses may have


@pytest.fixture(scope="module")
def sets(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    where = tmp_path_factory.mktemp("kept") / "responses"
    return [
        f"models.dirs={tiny_models}",
        UNPROBED,
        f"auth.api_keys={ALICE},{BOB}",
        "responses.store=disk",
        f"responses.directory={where}",
        f"responses.max_bytes={LARGE}B",
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


def test_many_responses_of_one_key_push_out_none_of_another(
    tiny_models: Path, tmp_path: Path
) -> None:
    few = [f"auth.api_keys={ALICE},{BOB}", "responses.max_entries=4"]
    with serving("org/tiny", tmp_path, f"models.dirs={tiny_models}", UNPROBED, *few) as server:
        mine = post(server, body(server, max_output_tokens=1), key=ALICE).json()["id"]
        for _ in range(6):
            assert post(server, body(server, max_output_tokens=1), key=BOB).status_code == 200
        assert get(server, mine, key=ALICE).status_code == 200


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


# -- files that somebody else has written, or nobody to the end ------------------------------------


def changed(data: bytes, change: Callable[[Json], object]) -> bytes:
    """A stored response with something else in it."""
    shape = orjson.loads(data)
    change(shape)
    return orjson.dumps(shape)


def _put(*path: str | int, value: Any) -> Callable[[Json], object]:
    def change(shape: Any) -> None:
        for step in path[:-1]:
            shape = shape[step]
        shape[path[-1]] = value

    return change


def _drop(*path: str | int) -> Callable[[Json], object]:
    def change(shape: Any) -> None:
        for step in path[:-1]:
            shape = shape[step]
        del shape[path[-1]]

    return change


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "empty": ("no_json", lambda data: b""),
    "torn": ("no_json", lambda data: data[:-3]),
    "not text": ("no_json", lambda data: b"\xff\xfe" + data),
    "too deep": ("no_json", lambda data: b"[" * 100_000),
    "null": ("wrong_fields", lambda data: b"null"),
    "a list": ("wrong_fields", lambda data: b"[1,2]"),
    "nothing in it": ("wrong_fields", lambda data: b"{}"),
    "no response": ("wrong_fields", lambda data: changed(data, _drop("response"))),
    "no input": ("wrong_fields", lambda data: changed(data, _drop("input"))),
    "a text for a response": ("wrong_fields", lambda d: changed(d, _put("response", value="x"))),
    "a number for input": ("wrong_fields", lambda d: changed(d, _put("input", value=5))),
    "no output": ("wrong_fields", lambda d: changed(d, _drop("response", "output"))),
    "output is an object": (
        "wrong_fields",
        lambda d: changed(d, _put("response", "output", value={"a": 1})),
    ),
    "an item is a text": ("wrong_fields", lambda d: changed(d, _put("input", 0, value="x"))),
    "an item of no type": ("wrong_fields", lambda d: changed(d, _drop("input", 0, "type"))),
    "an item without id": (
        "wrong_fields",
        lambda d: changed(d, _drop("response", "output", 0, "id")),
    ),
    "a part is a number": (
        "wrong_fields",
        lambda d: changed(d, _put("response", "output", 0, "content", value=[7])),
    ),
    "a text is null": (
        "wrong_fields",
        lambda d: changed(d, _put("input", 0, "content", 0, "text", value=None)),
    ),
    "a role of nobody": ("wrong_fields", lambda d: changed(d, _put("input", 0, "role", value=[]))),
    "a call without a name": (
        "wrong_fields",
        lambda d: changed(d, _put("input", 0, value={"type": "function_call", "id": "x"})),
    ),
    "no status": ("wrong_fields", lambda d: changed(d, _drop("response", "status"))),
    "another's id": (
        "another",
        lambda d: changed(d, _put("response", "id", value=f"resp_{'0' * 32}")),
    ),
    "too large": ("too_large", lambda data: data + b" " * LARGE),
}


@pytest.fixture(scope="module")
def directory(sets: list[str]) -> Path:
    return Path(next(x for x in sets if x.startswith("responses.directory=")).partition("=")[2])


def file_of(directory: Path, id: str) -> Path:
    name = hmac.new(ALICE.encode(), id.encode(), hashlib.sha256).hexdigest()
    return directory / f"{name}.json"


def damaged(server: ServerProcess, reason: str) -> float:
    headers = {"authorization": f"Bearer {ALICE}"}
    text = server.http.get(f"{server.url}/metrics", headers=headers).text
    return samples(text).get(f'omlx_responses_damaged_total{{reason="{reason}"}}', 0)


def assert_not_found(server: ServerProcess, found: Json) -> None:
    """By any of the ways that lead to a stored response."""
    id, item = found["id"], found["output"][0]["id"]
    for path in (id, f"{id}/input_items"):
        assert_envelope(get(server, path, ALICE), 404)
    assert_envelope(post(server, {}, f"{RESPONSES}/{id}/cancel", ALICE), 404)
    asked = body(server, previous_response_id=id)
    assert_envelope(post(server, asked, key=ALICE), 400)
    assert_envelope(post(server, asked, f"{RESPONSES}/input_tokens", ALICE), 400)
    assert_envelope(post(server, body(server, input=[{"id": item}]), key=ALICE), 404)


@pytest.fixture(scope="module")
def chain(disk: ServerProcess) -> tuple[Json, Json]:
    """A response, and one that goes on from it."""
    first = ask(disk, max_output_tokens=4)
    return first, ask(disk, max_output_tokens=4, previous_response_id=first["id"])


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_a_counted_miss(
    disk: ServerProcess, directory: Path, chain: tuple[Json, Json], name: str
) -> None:
    first, second = chain
    file = file_of(directory, first["id"])
    whole = file.read_bytes()
    reason, damage = DAMAGES[name]
    before = damaged(disk, reason)
    file.write_bytes(damage(whole))
    try:
        assert_not_found(disk, first)
        assert damaged(disk, reason) == before + 6
        # The conversation of the second is all in its own file.
        assert get(disk, second["id"], ALICE).json() == second
    finally:
        file.write_bytes(whole)
    assert get(disk, first["id"], ALICE).json() == first
    assert ask(disk, max_output_tokens=2, previous_response_id=second["id"])


def test_a_file_of_an_earlier_version_is_read(
    disk: ServerProcess, directory: Path, chain: tuple[Json, Json]
) -> None:
    first, _ = chain
    file = file_of(directory, first["id"])
    whole = file.read_bytes()
    thought = {"id": "rs_1", "type": "reasoning", "summary": [], "content": []}
    thought |= {"status": "completed"}
    earlier = changed(whole, _drop("response", "presence_penalty"))
    earlier = changed(earlier, _drop("response", "frequency_penalty"))
    before = thought | {"encrypted_content": None}
    earlier = changed(earlier, _put("response", "output", value=[*first["output"], before]))
    file.write_bytes(changed(earlier, lambda shape: shape["input"].append(before)))
    try:
        found = get(disk, first["id"], ALICE).json()
    finally:
        file.write_bytes(whole)
    assert found == first | {"output": [*first["output"], thought]}


@pytest.mark.parametrize("kind", ["a directory", "a pipe", "a link", "nobody may read it"])
def test_what_is_no_file_is_a_counted_miss(
    disk: ServerProcess, directory: Path, chain: tuple[Json, Json], kind: str
) -> None:
    if kind == "nobody may read it" and os.geteuid() == 0:
        pytest.skip("root may read anything")
    first, _ = chain
    file, aside = file_of(directory, first["id"]), directory / "aside"
    before = damaged(disk, "unreadable")
    file.rename(aside)
    try:
        match kind:
            case "a directory":
                file.mkdir()
            case "a pipe":
                os.mkfifo(file)
            case "a link":
                file.symlink_to(aside)
            case _:
                file.touch(0)
        assert_not_found(disk, first)
        assert damaged(disk, "unreadable") == before + 6
    finally:
        file.rmdir() if file.is_dir() else file.unlink()
        aside.rename(file)
    assert get(disk, first["id"], ALICE).json() == first
