"""A real server with all that there is to describe: a model that thinks and chats, one that embeds,
one that ranks, and a key."""

from collections.abc import Iterator

import pytest

from omlx_server.models.locate import Located
from tests.api.description.judge import Judge
from tests.api.description.server import CHAT, KEY, save_chat, settings_of
from tests.api.encoders.conftest import minilm, ranker
from tests.api.harness import UNPROBED, ServerProcess, serving

__all__ = ["minilm", "ranker"]


@pytest.fixture(scope="session")
def all_kinds(
    minilm: Located, ranker: Located, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("described")
    models = save_chat(directory / "models")
    settings = settings_of(models, minilm.path.parent, ranker.path.parent)
    settings.append(UNPROBED)
    with serving(CHAT, directory / "server", *settings) as server:
        server.http.headers["Authorization"] = f"Bearer {KEY}"
        yield server


@pytest.fixture(scope="session")
def judge(all_kinds: ServerProcess) -> Judge:
    """Of the document that the server itself gives."""
    return Judge(all_kinds.http.get(f"{all_kinds.url}/openapi.json").json())
