"""Servers with several small models."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import CHATML
from tests.api.encoders import models as reading
from tests.api.harness import (
    ADMIN_TOKEN,
    Json,
    ServerProcess,
    serving,
)
from tests.text import makers
from tests.tiny_models import save_tiny

OWNER = {"x-admin-token": ADMIN_TOKEN}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three that chat, one that ranks, one that can't be loaded, and a word that is no model."""
    root = tmp_path_factory.mktemp("several")
    for name, kind in (("a", "llama"), ("b", "qwen3"), ("c", "gemma3_text")):
        save(root / "org" / name, kind)
    reading.save_ranker(root / "org" / "ranker")
    broken = save(root / "org" / "broken", "llama")
    (broken / "model.safetensors").write_bytes(b"\x00" * 64)
    (root / "org" / "empty").mkdir()
    return root


def save(path: Path, kind: str, **changes: Any) -> Path:
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(makers.save(path, "byte_level", CHATML), kind, vocab_size=vocab, **changes)
    return path


def sets(directory: Path, *more: str) -> list[str]:
    return [
        f"models.dirs={directory}",
        "models.use_hf_cache=false",
        "memory.activation_reserve=16MB",
        *more,
    ]


@pytest.fixture(scope="module")
def server(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    aliases = 'aliases = {small = "org/b", tiny = "small", lost = "away", away = "org/nope"}'
    with configured("org/a", tmp_path_factory.mktemp("server"), directory, aliases) as server:
        yield server


def configured(
    model: str, home: Path, directory: Path, models: str
) -> AbstractContextManager[ServerProcess]:
    """With lines of a config file's [models]."""
    return serving(model, home, *sets(directory), config=f"[models]\n{models}\n")


def ask(server: ServerProcess, model: str, content: str = "Hello", **fields: Any) -> httpx.Response:
    return server.post({**server.body(content), "max_tokens": 6, **fields, "model": model})


def told(server: ServerProcess) -> dict[str, Json]:
    answer = server.http.get(f"{server.url}/admin/models", headers=OWNER)
    assert answer.status_code == 200, answer.text
    return {item["name"]: item for item in answer.json()["models"]}


def states(server: ServerProcess) -> dict[str, str]:
    return {name: item["state"] for name, item in told(server).items()}


def order(server: ServerProcess, what: str, model: str, **fields: Any) -> httpx.Response:
    return server.http.post(
        f"{server.url}/admin/models/{what}", json={"model": model, **fields}, headers=OWNER
    )
