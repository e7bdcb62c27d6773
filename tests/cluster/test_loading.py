"""Each rank reads its part of the weights only, and has what mlx-lm would give it, to the bit."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.hardware import device
from tests.cluster.loading import Loading, two_ranks
from tests.tiny_models import save_tiny

FOUR_LAYERS = {"num_hidden_layers": 4}
LARGER = {"hidden_size": 256, "intermediate_size": 2048, "head_dim": 64}
EXPERTS = {**LARGER, "moe_intermediate_size": 512, "num_experts": 8}
# Quantised or not, and the changes of its configuration.
CASES: tuple[tuple[str, bool, dict[str, Any]], ...] = (
    ("llama", False, {}),
    ("qwen3_moe", True, EXPERTS),
    ("gpt_oss", False, {}),
    ("deepseek_v3", False, {}),
    ("qwen3_5", False, {**FOUR_LAYERS, "vocab_size": 200}),  # parts of a matrix are split apart
    ("qwen3_next", False, FOUR_LAYERS),  # by layers
)
LARGE: tuple[tuple[str, bool, dict[str, Any]], ...] = (
    ("llama", False, LARGER),
    ("llama", True, LARGER),
    ("qwen3_moe", False, EXPERTS),
)
# A rank reads its rows of a matrix whose rows are shared out. Where columns are, it reads all.
BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
# Headers, config.json, and what Python reads by the way.
OTHERS = 64 << 10


@pytest.fixture(scope="module")
def ranks() -> Iterator[Loading]:
    with two_ranks() as made:
        yield made


@pytest.mark.parametrize(("family", "quantised", "changes"), CASES)
def test_a_rank_has_what_mlx_lm_gives_it(
    ranks: Loading, tmp_path: Path, family: str, quantised: bool, changes: dict[str, Any]
) -> None:
    saved(tmp_path, family, quantised, changes)
    for own, _ in ranks.loaded(tmp_path):
        assert not own.different


def test_experts_that_are_stored_one_by_one_are_stacked(ranks: Loading, tmp_path: Path) -> None:
    saved(tmp_path, "qwen3_moe", quantised=False, changes={})
    file = str(tmp_path / "model.safetensors")
    arrays, apart = mx.load(file), dict[str, mx.array]()
    assert isinstance(arrays, dict)
    for name, array in arrays.items():
        start, stacked, end = name.partition("switch_mlp")
        parts = enumerate(array) if stacked else ()
        apart |= {f"{start}experts.{number}{end}": part for number, part in parts}
        if not stacked:
            apart[name] = array
    mx.save_safetensors(file, apart, metadata={"format": "mlx"})
    for own, _ in ranks.loaded(tmp_path):
        assert not own.different


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what a process reads")
@pytest.mark.parametrize(("family", "quantised", "changes"), LARGE)
def test_it_reads_its_part_and_needs_no_more_memory(
    ranks: Loading, tmp_path: Path, family: str, quantised: bool, changes: dict[str, Any]
) -> None:
    sizes = saved(tmp_path, family, quantised, changes)
    whole, largest = sum(sizes.values()), max(sizes.values())
    other = sum(size for name, size in sizes.items() if name.split(".")[-2] in BY_ROWS) // 2
    assert other > whole / 4
    for own, mlx in ranks.loaded(tmp_path):
        assert not own.different
        assert own.nbytes < mlx.nbytes + OTHERS
        assert abs(own.read - (whole - other)) < OTHERS
        assert abs(mlx.read - whole) < OTHERS
        assert own.peak <= min(own.nbytes + 2 * largest, mlx.peak)


def saved(directory: Path, family: str, quantised: bool, changes: dict[str, Any]) -> dict[str, int]:
    """Save a tiny model. Returns the bytes of its arrays."""
    save_tiny(directory, family, **changes)
    if quantised:
        device.quantize_in_place(directory)
    arrays = mx.load(str(directory / "model.safetensors"))
    assert isinstance(arrays, dict)
    return {name: array.nbytes for name, array in arrays.items()}
