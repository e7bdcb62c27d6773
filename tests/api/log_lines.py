"""Reads the log of a server whose output is no terminal, so that each line is a JSON object."""

import json
from typing import Any

from tests.api.harness import ServerProcess, wait_for


def lines(server: ServerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]


def lines_of(server: ServerProcess, name: str) -> list[dict[str, Any]]:
    """The lines of one request, once its last is there."""

    def found() -> list[dict[str, Any]]:
        mine = [line for line in lines(server) if line.get("request_id") == name]
        return mine if any("seconds" in line for line in mine) else []

    return wait_for(found)
