"""A GGUF file gives the logits that mlx-lm's model of the same values gives."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.model.loader import load
from omlx_server.core.gguf.families import FAMILIES
from omlx_server.models.gguf.view import view_of
from tests.gguf_models import KINDS, WrittenModel, write_model

TOKENS = [[5, 9, 2, 7, 1, 3, 8, 8, 4, 6, 2, 9, 30, 40, 50]]


def check_logits(written: WrittenModel, directory: Path) -> None:
    loaded = load(view_of(written.file, directory / "views"))
    expected, got = (model(mx.array(TOKENS)) for model in (written.model, loaded.model))
    np.testing.assert_allclose(np.array(got), np.array(expected), atol=2e-4)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_logits_are_those_of_the_values(architecture: str, tmp_path: Path) -> None:
    check_logits(write_model(tmp_path, architecture), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_values_of_one_type(kind: str, tmp_path: Path) -> None:
    check_logits(write_model(tmp_path, "qwen3", [kind]), tmp_path)
