"""One browser and one server for all tests of the page. They end with them: playwright has an event
loop in this thread, beside which no other one can run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.api.conftest import CHATML, THINKING
from tests.api.harness import UNPROBED, ServerProcess, serving
from tests.models import fake_hub
from tests.models.fake_hub import Faults
from tests.text import makers
from tests.tiny_models import save_tiny
from tests.web.chromium import MISSING, chromium
from tests.web.visits import Visits

_CONFIG = '[auth]\napi_keys = ["key-of-the-page"]\n'


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`org/tiny`, `org/other`, and `org/thinker`, which thinks first."""
    models = tmp_path_factory.mktemp("models")
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    for name, template in (("tiny", CHATML), ("other", CHATML), ("thinker", THINKING)):
        path = makers.save(models / "org" / name, "byte_level", template)
        save_tiny(path, "llama", vocab_size=vocab)
    return models


@pytest.fixture(scope="package")
def sets(models: Path) -> list[str]:
    """Settings of a server of these models, whose blocks are small."""
    return [f"models.dirs={models}", "models.use_hf_cache=false", "cache.block_tokens=16", UNPROBED]


@pytest.fixture(scope="package")
def faults() -> Faults:
    """Of the hub, which has `org/away`."""
    return Faults()


@pytest.fixture(scope="package")
def hub(models: Path, faults: Faults) -> Iterator[str]:
    files = {path.name: path.read_bytes() for path in (models / "org" / "tiny").iterdir()}
    template = {"chat_template": "{{ tools }}<think></think>"}
    config = {"architectures": ["LlamaForCausalLM"], "tokenizer_config": template}
    tensors = {"parameters": {"U32": 250_000_000}}
    listed = {"id": "org/away", "config": config, "safetensors": tensors, "downloads": 7}
    large = frozenset({"model.safetensors"})
    with fake_hub.serve("org/away", files, large, faults, models=[listed]) as (url, _):
        yield url


@pytest.fixture(scope="package")
def server(
    browser: Browser, sets: list[str], hub: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with an API key and a config file."""
    home = tmp_path_factory.mktemp("page")
    environ = {"HF_ENDPOINT": hub, "HF_HOME": str(home / "hub")}
    with serving("org/tiny", home, *sets, config=_CONFIG, environ=environ) as server:
        yield server


@pytest.fixture
def visits(browser: Browser, server: ServerProcess) -> Iterator[Visits]:
    """Visits in which nothing may go wrong in the console, and nothing leaves the origin."""
    visits = Visits(browser, server.url)
    yield visits
    assert not visits.problems, visits.problems
