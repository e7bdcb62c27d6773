"""One server with a tiny vision model of each family, and one that takes text only."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.harness import UNPROBED, ServerProcess, serving
from tests.vision_models import FAMILIES, save_vision

MOST_IMAGES = 12


@pytest.fixture(scope="session")
def vision_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models directory with `org/FAMILY`. Images may have 1,024 tokens with Qwen3-VL."""
    root = tmp_path_factory.mktemp("vision")
    for family in FAMILIES:
        path = save_vision(root / "org" / family, family)
        if family == "qwen3_vl":
            file = path / "preprocessor_config.json"
            config = json.loads(file.read_text("utf-8"))
            config["size"]["longest_edge"] = 256 * 256
            file.write_text(json.dumps(config), "utf-8")
    return root


@pytest.fixture(scope="session")
def seeing(
    vision_models: Path, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    sets = [f"models.dirs={vision_models},{tiny_models}", UNPROBED, "logging.level=debug"]
    sets += [f"images.max_per_request={MOST_IMAGES}", "models.max_loaded=4"]
    with serving("org/qwen3_vl", tmp_path_factory.mktemp("seeing"), *sets) as server:
        yield server
