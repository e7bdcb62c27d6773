"""Two servers, started once and shared: a tiny one for most tests, the starter model for a few."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from omlx_server.text.tokenizer import Tokenizer
from tests.api.harness import UNPROBED, ServerProcess, serving
from tests.known_seams import known_seams
from tests.text import makers
from tests.tiny_models import save_tiny

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# As Qwen3's: a thought is opened, or closed at once; past thoughts are not shown.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'].split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="package", autouse=True)
def _known_seams() -> Iterator[None]:
    with known_seams():
        yield


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models directory with `org/tiny`: random weights, a byte-level tokenizer, 4,096 tokens;
    and `org/thinker`, the same with a template that opens thoughts."""
    models = tmp_path_factory.mktemp("models")
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    for name, template in (("tiny", CHATML), ("thinker", THINKING)):
        path = makers.save(models / "org" / name, "byte_level", template)
        save_tiny(path, "llama", vocab_size=vocab)
    return models


@pytest.fixture(scope="session")
def tokenizer(tiny_models: Path) -> Tokenizer:
    """That of `org/tiny`."""
    return Tokenizer.load(tiny_models / "org" / "tiny")


@pytest.fixture(scope="session")
def tiny(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Answers at about a millisecond a token. Debug logging, so that leaks into it show. Who reads
    slowly has time: the machine may have other work."""
    sets = [f"models.dirs={tiny_models}", "scheduler.max_queue=512", "logging.level=debug"]
    sets += ["server.write_timeout_seconds=600", UNPROBED]
    with serving("org/tiny", tmp_path_factory.mktemp("tiny"), *sets) as server:
        yield server


@pytest.fixture(scope="session")
def thinker(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A tiny model that thinks first."""
    sets = [f"models.dirs={tiny_models}", "logging.level=debug", UNPROBED]
    with serving("org/thinker", tmp_path_factory.mktemp("thinker"), *sets) as server:
        yield server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The starter model, where realism counts. Not probed, which would take longer than the tests
    that ask it: it has all of the memory that it may want."""
    with serving("starter", tmp_path_factory.mktemp("starter"), UNPROBED) as server:
        yield server


@pytest.fixture(scope="session")
def client(tiny: ServerProcess) -> Iterator[OpenAI]:
    """The official package, which checks the type of every field that it gets."""
    with OpenAI(
        base_url=f"{tiny.url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client
