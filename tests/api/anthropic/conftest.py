"""The anthropic package as client, with strict validation, of the servers that all tests share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from anthropic import Anthropic

from tests.api.harness import UNPROBED, ServerProcess, serving
from tests.text import makers
from tests.tiny_models import save_tiny

KEY = "key-one"
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@contextmanager
def package(server: ServerProcess, key: str = "x") -> Iterator[Anthropic]:
    with Anthropic(
        base_url=server.url, api_key=key, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture(scope="session")
def claude(tiny: ServerProcess) -> Iterator[Anthropic]:
    with package(tiny) as client:
        yield client


@pytest.fixture(scope="session")
def starter(server: ServerProcess) -> Iterator[Anthropic]:
    with package(server) as client:
        yield client


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model that thinks when it is told to; a server with keys, one row and one place to wait."""
    models = tmp_path_factory.mktemp("thinkers")
    path: Path = makers.save(models / "org" / "thinker", "byte_level", THINKING)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(path, "llama", vocab_size=vocab, max_position_embeddings=1 << 16)
    sets = (
        f"models.dirs={models}",
        UNPROBED,
        f"auth.api_keys={KEY},key-two",
        "scheduler.max_batch_size=1",
        "scheduler.max_queue=1",
        "server.sse_ping_seconds=0.1",
    )
    with serving("org/thinker", tmp_path_factory.mktemp("thinker"), *sets) as server:
        server.http.headers["x-api-key"] = KEY
        yield server
