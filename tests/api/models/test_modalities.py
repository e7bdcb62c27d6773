"""What /v1/models tells of what a model takes and gives."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from anthropic import Anthropic
from openai import OpenAI
from typer.testing import CliRunner

from omlx_server.cli.app import app
from tests.api.harness import UNPROBED, ServerProcess, serving
from tests.vision_models import save_vision


@pytest.fixture(scope="module")
def seeing(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model that takes images, and others beside it that take none."""
    own = save_vision(tmp_path_factory.mktemp("vision") / "org" / "seeing").parent.parent
    sets = (f"models.dirs={own},{tiny_models}", UNPROBED)
    with serving("org/seeing", tmp_path_factory.mktemp("seeing"), *sets) as server:
        yield server


def test_a_model_that_takes_images_says_so(seeing: ServerProcess) -> None:
    listed = seeing.http.get(f"{seeing.url}/v1/models").json()["data"]
    found = {model["id"]: model["architecture"] for model in listed}
    assert found["org/seeing"] == {
        "modality": "text+image->text",
        "input_modalities": ["text", "image"],
        "output_modalities": ["text"],
    }
    assert found["seeing"] == found["org/seeing"]
    assert found["org/tiny"] == {
        "modality": "text->text",
        "input_modalities": ["text"],
        "output_modalities": ["text"],
    }
    one = seeing.http.get(f"{seeing.url}/v1/models/org/seeing").json()
    assert one["architecture"] == found["org/seeing"]


def test_the_official_packages_take_it(seeing: ServerProcess) -> None:
    common = {"api_key": "x", "max_retries": 0, "_strict_response_validation": True}
    with OpenAI(base_url=f"{seeing.url}/v1", **common) as openai:  # type: ignore[arg-type]
        told = openai.models.retrieve("org/seeing")
    assert told.model_extra and told.model_extra["architecture"]["modality"] == "text+image->text"
    with Anthropic(base_url=seeing.url, **common) as anthropic:  # type: ignore[arg-type]
        assert anthropic.models.retrieve("org/seeing").capabilities is None


def test_an_agent_that_has_to_know_is_told(seeing: ServerProcess) -> None:
    said = CliRunner().invoke(app, ["launch", "opencode", "--print", "--url", seeing.url]).stdout
    words = next(word for word in shlex.split(said) if word.startswith("OPENCODE_CONFIG_CONTENT="))
    (model,) = orjson.loads(words.partition("=")[2])["provider"]["omlx"]["models"].values()
    assert model["modalities"] == {"input": ["text", "image"], "output": ["text"]}


def test_a_model_that_could_not_be_loaded_with_its_tower_says_so(tmp_path: Path) -> None:
    """Before it is loaded, its files promise more."""
    path = save_vision(tmp_path / "org" / "seeing")
    config = orjson.loads((path / "config.json").read_bytes())
    config["vision_config"]["depth"] += 1
    (path / "config.json").write_bytes(orjson.dumps(config))
    with serving("org/seeing", tmp_path / "server", f"models.dirs={tmp_path}", UNPROBED) as server:
        told = server.http.get(f"{server.url}/v1/models/org/seeing").json()
        assert told["architecture"]["input_modalities"] == ["text"]
        assert server.chat("Hi", max_tokens=2)
