"""Which files of a model's directory count, where others lie beside them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from omlx_server.compute.embed.loader import read_weights
from omlx_server.compute.hardware import device
from omlx_server.compute.model.fingerprint import file_states, fingerprint
from omlx_server.compute.model.loader import load
from omlx_server.compute.weights.weights import lazy_weights
from omlx_server.models.damage import damaged_weights
from omlx_server.models.layout import weight_bytes
from tests.tiny_models import save_tiny

SHARD = "model-00001-of-00001.safetensors"


def values(weights: Mapping[str, Any]) -> set[float]:
    """The least and the largest of all values."""
    arrays = dict(tree_flatten(weights)).values()
    return {float(edge(array)) for array in arrays for edge in (mx.min, mx.max)}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model of sevens in a shard that the index names, and its older weights beside it."""
    save_tiny(tmp_path, "llama")
    old = mx.load(str(tmp_path / "model.safetensors"))
    assert isinstance(old, dict)
    sevens = {name: mx.full(array.shape, 7.0) for name, array in old.items()}
    mx.save_safetensors(str(tmp_path / SHARD), sevens, metadata={"format": "mlx"})
    index = {"weight_map": dict.fromkeys(sevens, SHARD)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_only_the_weights_of_the_index_are_loaded(sharded: Path) -> None:
    assert values(load(sharded).model.parameters()) == {7.0}
    assert values(lazy_weights(sharded)) == values(read_weights(sharded)) == {7.0}
    assert weight_bytes(sharded) == (sharded / SHARD).stat().st_size


@pytest.mark.parametrize("stale", [b"", bytes(64), b"half of a file that was being written"])
def test_what_lies_beside_them_changes_nothing(sharded: Path, stale: bytes) -> None:
    known_as, states = fingerprint(sharded), file_states(sharded)
    (sharded / "model.safetensors").write_bytes(stale)
    assert fingerprint(sharded) == known_as
    assert file_states(sharded) == states
    assert damaged_weights(sharded) == ""
    assert values(load(sharded).model.parameters()) == {7.0}


@pytest.mark.parametrize("said", [b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_makers_defaults_that_can_not_be_read_are_left_out(tmp_path: Path, said: bytes) -> None:
    save_tiny(tmp_path, "llama")
    expected = load(tmp_path).weight_bytes
    (tmp_path / "generation_config.json").write_bytes(said)
    assert load(tmp_path).weight_bytes == expected


@pytest.mark.parametrize("inner", [False, True])
def test_the_copy_of_the_quantisation_alone_is_enough(tmp_path: Path, inner: bool) -> None:
    """MLX writes its table twice, the second time where transformers looks for one."""
    save_tiny(tmp_path, "llama")
    device.quantize_in_place(tmp_path)
    expected = load(tmp_path).weight_bytes
    config = json.loads((tmp_path / "config.json").read_bytes())
    del config["quantization"]
    if inner:
        config["text_config"] = {"quantization_config": config.pop("quantization_config")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(tmp_path).weight_bytes == expected
