"""One server for all tests of Ollama's API, and the ollama package as its client. It has models
that chat, think and see, one that embeds, one that may leave, one that leaves after 30 s, and a hub
of its own to fetch from. The first one is pinned."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import ollama
import orjson
import pytest

from omlx_server.models.locate import Located
from tests.api.conftest import CHATML, THINKING
from tests.api.encoders.conftest import minilm
from tests.api.harness import UNPROBED, ServerProcess, serving
from tests.models import fake_hub
from tests.text import makers
from tests.tiny_models import save_tiny
from tests.vision_models import save_vision

__all__ = ["minilm"]

T = TypeVar("T")
FAR = "far/away"
LARGE = frozenset({"model.safetensors"})
Asynchronously = Callable[[Callable[[ollama.AsyncClient], Awaitable[T]]], T]


def save(path: Path, template: str, **config: object) -> Path:
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(makers.save(path, "byte_level", template), "llama", vocab_size=vocab, **config)
    return path


@pytest.fixture(scope="session")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of models."""
    root = tmp_path_factory.mktemp("ollama")
    for name, template in (("tiny", CHATML), ("thinker", THINKING), ("leaver", CHATML)):
        save(root / "org" / name, template)
    save_vision(root / "org" / "seeing")
    return root


def overrides(talking: Path) -> dict[str, object]:
    """Of the models in `talking`, with the template of one that thinks in a file there."""
    template = talking / "thinking.jinja"
    template.write_text(THINKING)
    leaver = {"chat_template": str(template), "sampling": {"temperature": 0.25}}
    presets = {"presets": {"brief": {"max_tokens": 3}}}
    return {"org/thinker": {"ttl": 30}, "org/tiny": presets, "org/leaver": leaver}


@pytest.fixture(scope="session")
def own(
    talking: Path, minilm: Located, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    files = {path.name: path.read_bytes() for path in (talking / "org" / "tiny").iterdir()}
    fetched = tmp_path_factory.mktemp("fetched")
    sets = (
        f"models.dirs={fetched},{talking},{minilm.path.parent}",
        "models.use_hf_cache=false",
        "models.embedding=minilm",
        'models.aliases={"small": "org/tiny"}',
        "models.pinned=org/tiny",
        f"models.overrides={orjson.dumps(overrides(talking)).decode()}",
        UNPROBED,
    )
    with fake_hub.serve(FAR, files, LARGE, fake_hub.Faults()) as (url, _):
        environ = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path_factory.mktemp("hf"))}
        home = tmp_path_factory.mktemp("server")
        with serving("org/tiny", home, *sets, environ=environ) as server:
            yield server


@pytest.fixture(scope="session")
def client(own: ServerProcess) -> Iterator[ollama.Client]:
    with ollama.Client(host=own.url, trust_env=False) as client:
        yield client


@pytest.fixture(scope="session")
def asynchronously(own: ServerProcess) -> Callable[..., object]:
    """Runs a coroutine that asks with the package's asynchronous client."""

    def run(ask: Callable[[ollama.AsyncClient], Awaitable[T]]) -> T:
        async def asking() -> T:
            async with ollama.AsyncClient(host=own.url, trust_env=False) as client:
                return await ask(client)

        return asyncio.run(asking())

    return run
