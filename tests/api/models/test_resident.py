"""Bad and hostile requests leave no memory behind: what the process takes is bounded.

On the account are compiled grammars, whose number is not what bounds them; words that a tokenizer
remembers, and what the allocator keeps of what was freed, are on none and must be few.
"""

import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.api.harness import ServerProcess, serving, wait_for

MOST = 64 << 20
BODY = 8 << 20
CHANCE = random.Random(0)


@pytest.fixture(scope="module")
def server(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sets = [f"models.dirs={tiny_models}", "cache.hot_cache_max_bytes=1MB"]
    sets += ["memory.activation_reserve=64MB"]
    # Not forked: what it shares with its parent would count as its own once it is written to.
    with serving("org/tiny", tmp_path_factory.mktemp("resident"), *sets, forked=False) as server:
        yield server


def word(length: int) -> str:
    return "".join(CHANCE.choices(string.ascii_letters, k=length))


def schema(fields: int) -> dict[str, Any]:
    properties = {word(8): {"type": "string"} for _ in range(fields)}
    shape = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": shape}}


def send(server: ServerProcess, body: bytes, path: str = "/v1/chat/completions") -> int:
    headers = {"content-type": "application/json"}
    return server.http.post(f"{server.url}{path}", content=body, headers=headers).status_code


def words(server: ServerProcess) -> None:
    """Distinct ones, as long as the library remembers them, by both ways into a tokenizer."""
    for number in range(400):
        text = " ".join(word(250) for _ in range(15))
        asked: dict[str, Any] = {"prompt": text}
        if number % 2:
            asked = {"messages": [{"role": "user", "content": text}]}
        assert send(server, orjson.dumps({"model": server.model, **asked}), "/tokenize") == 200


def bodies(server: ServerProcess) -> None:
    """Up to the cap, of many small parts and of few large ones."""
    head = orjson.dumps({"model": server.model})[:-1]
    many = head + b',"messages":[' + b"{}," * (BODY // 3 - 100) + b"{}]}"
    pairs = b"".join(b'"%d":0,' % number for number in range(BODY // 12))
    unknown = head + b"," + pairs + b'"messages":[]}'
    text = orjson.dumps(server.body("7 " * (BODY // 2 - 200)))
    for body in (many, unknown, text, b"[" * BODY, b'{"a":[' + b"[1,2]," * (BODY // 6 - 9)) * 2:
        assert send(server, body) in (400, 413)


def schemas(server: ServerProcess) -> None:
    for _ in range(30):
        body = server.body("Hi", max_tokens=1, response_format=schema(300))
        assert send(server, orjson.dumps(body)) == 200


def grammars_told(server: ServerProcess) -> int:
    return int(server.http.get(f"{server.url}/health").json()["memory"]["grammars"])


def test_what_bad_requests_have_taken_goes_back(server: ServerProcess) -> None:
    """Of the 440 requests here 120 MB stayed."""
    server.canary()
    assert send(server, orjson.dumps(server.body("Hi", response_format=schema(1)))) == 200
    before, told = server.memory, grammars_told(server)
    for class_ in (words, bodies, schemas):
        class_(server)
    wait_for(lambda: server.memory - before < MOST)
    # What is compiled, and the process in which grammars are tried out.
    assert told < grammars_told(server) <= (32 << 20) + (64 << 20)


def test_what_the_process_takes_is_told(server: ServerProcess) -> None:
    told = server.http.get(f"{server.url}/health").json()["memory"]["resident"]
    assert abs(told - server.memory) < MOST


def test_responses_in_memory_are_on_the_account(server: ServerProcess) -> None:
    def told() -> int:
        return int(server.http.get(f"{server.url}/health").json()["memory"]["responses"])

    before, text = told(), word(2000)
    asked = {"model": server.model, "input": text, "max_output_tokens": 1}
    assert send(server, orjson.dumps(asked), "/v1/responses") == 200
    assert told() - before > len(text)
