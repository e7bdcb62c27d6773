"""What a server tells of itself over HTTP: the OpenAPI document and /metrics."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from scripts.benchmarks import tiny
from scripts.benchmarks.http_system import start_ours


@dataclass(frozen=True, slots=True)
class Served:
    """`metrics`: Prometheus' text. `document`: that of OpenAPI."""

    metrics: str
    document: dict[str, Any]


def ask(url: str) -> Served:
    """Of a server that has answered nothing yet. Some labels show only after an answer."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        model = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        messages = [{"role": "user", "content": "Hello"}]
        body = {"model": model, "messages": messages, "max_tokens": 2}
        http.post("/v1/chat/completions", json=body).raise_for_status()
        metrics = http.get("/metrics").raise_for_status().text
        return Served(metrics, http.get("/openapi.json").raise_for_status().json())


@contextmanager
def tiny_server() -> Iterator[str]:
    """The address of a server with the default settings, its cold tier in a place of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sets = (f"cache.cold_dir={folder / 'kv'}", "memory.activation_reserve=64MB")
        server = start_ours(tiny.save(folder / "model"), folder, *sets)
        try:
            server.wait_until_ready()
            yield server.url
        finally:
            server.child.end()
