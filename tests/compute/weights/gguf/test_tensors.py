"""A GGUF file gives the logits that mlx-lm's model of the same values gives."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from omlx_server.compute.hardware import device_policy
from omlx_server.compute.model.loader import load
from omlx_server.compute.weights.gguf import tensors
from omlx_server.core.gguf.families import FAMILIES
from omlx_server.core.gguf.forms import bytes_in_mlx
from omlx_server.core.gguf.head import parse_head
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


def bytes_said(file: Path, number_bytes: int) -> int:
    with file.open("rb") as stream:
        return bytes_in_mlx(parse_head(stream, file.stat().st_size).tensors, number_bytes)


@pytest.mark.parametrize("policy", [device_policy.CPU, device_policy.GPU])
def test_all_floats_have_the_type_of_the_device_or_a_narrower_one(
    policy: device_policy.DevicePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_policy, "current", lambda: policy)
    written = write_model(tmp_path, "qwen3")
    loaded = load(view_of(written.file, tmp_path / "views"))
    arrays = dict(tree_flatten(loaded.model.parameters()))
    types = {array.dtype for array in arrays.values() if mx.issubdtype(array.dtype, mx.floating)}
    narrow = {mx.float16} if policy.numbers == mx.float32 else set()
    assert types == {policy.numbers, *narrow}
    assert loaded.dims.dtype == str(policy.numbers).removeprefix("mlx.core.")
    assert loaded.weight_bytes == bytes_said(written.file, policy.numbers.size)


def test_what_a_class_computes_in_float32_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_policy, "current", lambda: device_policy.GPU)
    written = write_model(tmp_path, "glm4moe")
    loaded = load(view_of(written.file, tmp_path / "views"))
    arrays = dict(tree_flatten(loaded.model.parameters()))
    floats = {name: a for name, a in arrays.items() if mx.issubdtype(a.dtype, mx.floating)}
    wide = [name for name, array in floats.items() if array.dtype == mx.float32]
    assert wide and all(name.endswith("e_score_correction_bias") for name in wide)
    expected, got = (model(mx.array(TOKENS)) for model in (written.model, loaded.model))
    assert mx.abs(got - expected).max() < 0.05 * mx.abs(expected).max()


def test_a_tensor_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_PIECE_VALUES", 1000)
    check_logits(write_model(tmp_path, "llama"), tmp_path)
