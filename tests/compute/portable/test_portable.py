"""Whatever `compute` puts into a graph, Metal and CUDA have it in the dtypes that it comes in."""

import re
from importlib.metadata import version

import mlx.core as mx
import pytest

from tests.compute.portable.calls import calling_mlx, named
from tests.compute.portable.page import COMMAND, table, written
from tests.compute.portable.planted import FILE
from tests.compute.portable.table import MLX
from tests.compute.portable.traced import ROOT, Traced, problems, trace_all_runs, traced

# What no run shows, and why it need not.
_ON_CPU = "computed by the CPU backend only"
_ELSEWHERE = "its operations are traced elsewhere"
_SEVERAL = "takes several processes"
_READS = "reads a file, and computes nothing"
NOT_TRACED = {
    ("compute/adapters/reading.py", "reading"): _READS,
    ("compute/attention/by_powers.py", "attention"): _ON_CPU,
    ("compute/attention/by_powers.py", "_mask_scores"): _ON_CPU,
    ("compute/embed/bert.py", "rational_gelu"): _ON_CPU,
    ("compute/kv/schemes/affine.py", "_group_selector"): _ON_CPU,
    ("compute/kv/schemes/affine.py", "_weigh_columns"): _ON_CPU,
    ("compute/bare.py", "matmul_gflops"): _ELSEWHERE,
    ("compute/kv/schemes/codes.py", "_pad_width"): _ELSEWHERE,
    ("compute/kv/schemes/packing.py", "unpack"): _ON_CPU,
    ("compute/kv/schemes/base.py", "PowerBase.fastest"): _ON_CPU,
    ("compute/kv/schemes/turboquant_tiles.py", "UnpackedTurboquant.score"): _ON_CPU,
    ("compute/kv/dispatch.py", "attend_joined"): _ELSEWHERE,
    ("compute/cluster/part.py", "_SplitArray.find_slice"): _SEVERAL,
    ("compute/cluster/part.py", "_SplitArray.indices"): _SEVERAL,
    ("compute/cluster/ranks.py", "ConnectedRanks.shared"): _SEVERAL,
    ("compute/cluster/ranks.py", "ConnectedRanks.time_sums"): _SEVERAL,
    ("compute/cluster/stored.py", "read_slice"): _SEVERAL,
    ("compute/cluster/ranks.py", "connect_ranks"): _SEVERAL,
    ("compute/sampler.py", "unsampled"): _SEVERAL,
    ("compute/weights/gguf/tensors.py", "_affine"): _READS,
    ("compute/weights/gguf/tensors.py", "_join_kv"): _READS,
    ("compute/weights/gguf/tensors.py", "_plain"): _READS,
    ("compute/weights/gguf/tensors.py", "_split_gate_up"): _READS,
}


@pytest.fixture(scope="module")
def found() -> Traced:
    return trace_all_runs()


def test_metal_and_cuda_have_every_operation_in_our_dtypes(found: Traced) -> None:
    missing = list(problems(found))
    assert not missing, "\n".join(missing)


def test_every_function_that_calls_mlx_is_traced(found: Traced) -> None:
    """A new one needs a run in tests/compute/portable/runs.py."""
    seen = {(place.path, named(place.function)) for places in found.values() for place in places}
    assert calling_mlx() - seen == NOT_TRACED.keys()


@pytest.mark.skipif(
    mx.default_device() != mx.Device(mx.cpu) or version("mlx") != MLX,
    reason="GPUs have fused operations, and another MLX has others",
)
def test_the_page_is_as_the_trace(found: Traced) -> None:
    assert table(found) == written()[1], f"docs/portability.md is out of date: run `{COMMAND}`"


def test_the_table_is_about_the_mlx_that_we_ask_for() -> None:
    """Another version of MLX may take other dtypes: look them up, then change `MLX` there."""
    asked = re.findall(r'"mlx(?:\[\w+\])?>=([\d.]+)', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert set(asked) == {MLX}


def test_what_a_gpu_lacks_is_named_with_its_place() -> None:
    told = list(problems(traced(("tests.compute.portable.planted",))))
    for backend in ("Metal", "CUDA"):
        assert any(
            f"QRF of float32 to float32: {backend} has it for no dtype" in one
            and re.search(rf"used in omlx_server/{FILE}:\d+ in factored$", one)
            for one in told
        )
        assert any(
            f"Multiply of float64 to float64: {backend} does not have it for float64" in one
            and one.endswith(" in doubled")
            for one in told
        )
    [counted] = [one for one in told if one.endswith(" in counted")]
    assert "Scatter of int32, int64 to int64: Metal does not have it for int64" in counted
    assert not [one for one in told if "SVD" in one or "Eigh" in one], "they were left to the CPU"
