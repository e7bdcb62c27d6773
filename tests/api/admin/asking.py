"""Asks a real server as its owner."""

import json
from typing import Any

from tests.api.harness import ADMIN_TOKEN, Json, ServerProcess

OWNER = {"x-admin-token": ADMIN_TOKEN}


def told(server: ServerProcess, path: str, status: int = 200, **given: Any) -> Json:
    """The JSON of a GET below /admin, or with `method` of another one."""
    method = given.pop("method", "GET")
    answer = server.http.request(method, f"{server.url}/admin/{path}", headers=OWNER, **given)
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    return found


def states(server: ServerProcess, count: int) -> list[Json]:
    """The data of the first events of /admin/live."""
    answer = server.http.get(f"{server.url}/admin/live?events={count}", headers=OWNER)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in answer.text.split("\n\n") if block.startswith("event:")]
    heads = {block.splitlines()[0] for block in blocks}
    assert heads <= {"event: state"}
    return [json.loads(block.splitlines()[1].removeprefix("data: ")) for block in blocks]
