"""What tests ask of Ollama's routes over plain HTTP."""

from typing import Any

import httpx
import orjson

from tests.api.harness import Json, ServerProcess

GREEDY: Json = {"temperature": 0, "num_predict": 12, "ignore_eos": True}
TALK: list[Json] = [{"role": "user", "content": "Tell me a story."}]


def post(server: ServerProcess, path: str, **fields: Any) -> httpx.Response:
    return server.http.post(f"{server.url}/api/{path}", json={"model": "org/tiny", **fields})


def whole(server: ServerProcess, path: str, **fields: Any) -> Json:
    response = post(server, path, stream=False, **fields)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def lines(response: httpx.Response) -> list[Json]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [orjson.loads(line) for line in response.text.splitlines()]
