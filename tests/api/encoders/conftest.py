"""A real server with three models: one that chats, all-MiniLM-L6-v2 and a tiny cross-encoder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx_server.models.bundled.embedded import ensure
from omlx_server.models.catalogue import MINILM
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from tests.api.encoders import models
from tests.api.harness import UNPROBED, ServerProcess, serving

Post = Callable[..., httpx.Response]


@pytest.fixture(scope="session")
def minilm() -> Located:
    return Located(ensure(MINILM, Settings().models.dirs[0]), (MINILM.full_name, MINILM.name))


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Located:
    path = tmp_path_factory.mktemp("readers") / "ranker"
    return Located(models.save_ranker(path), ("ranker",))


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Located:
    path = tmp_path_factory.mktemp("readers") / "judge"
    return Located(models.save_judge(path), ("judge",))


@pytest.fixture(scope="session")
def tiny_chat(tiny_models: Path) -> Located:
    return Located(tiny_models / "org" / "tiny", ("org/tiny",))


@pytest.fixture(scope="session")
def reading(
    tiny_models: Path,
    minilm: Located,
    ranker: Located,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    sets = (
        f"models.dirs={minilm.path.parent},{tiny_models},{ranker.path.parent}",
        "models.embedding=minilm",
        "models.reranker=ranker",
        "logging.level=debug",
        UNPROBED,
    )
    with serving("org/tiny", tmp_path_factory.mktemp("reading"), *sets) as server:
        yield server


@pytest.fixture
def post(reading: ServerProcess) -> Post:
    def ask(path: str, **fields: Any) -> httpx.Response:
        return reading.http.post(f"{reading.url}{path}", json=fields)

    return ask
