"""Where experts lie in a model's files."""

import pytest

from omlx_server.core.experts.files import ExpertFiles, ExpertSizes, StoredTensor

LAYER = "model.layers.3.mlp"


def stacked(start: int, *shape: int) -> StoredTensor:
    nbytes = 4
    for size in shape:
        nbytes *= size
    return StoredTensor("a", start, nbytes, "F32", shape)


def test_experts_of_one_array_lie_one_after_the_other() -> None:
    files = ExpertFiles({f"{LAYER}.switch_mlp.up_proj.weight": stacked(100, 3, 2, 5)})
    experts = files.experts_of(f"{LAYER}.switch_mlp", "up_proj.weight")
    assert [(one.start, one.nbytes, one.shape) for one in experts] == [
        (100, 40, (2, 5)),
        (140, 40, (2, 5)),
        (180, 40, (2, 5)),
    ]
    assert files.sizes == ExpertSizes(40, 3)


@pytest.mark.parametrize(
    ("block", "name"), [(LAYER, "down_proj"), ("model.layers.3.block_sparse_moe", "w2")]
)
def test_experts_may_have_a_tensor_each(block: str, name: str) -> None:
    tensors = {f"{block}.experts.{i}.{name}.weight": stacked(i * 64, 4, 4) for i in range(12)}
    files = ExpertFiles({**tensors, f"{block}.shared_experts.up_proj.weight": stacked(0, 4, 4)})
    experts = files.experts_of(f"{block}.switch_mlp", "down_proj.weight")
    assert [one.start for one in experts] == [i * 64 for i in range(12)]
    assert files.sizes == ExpertSizes(64, 12)


def test_all_layers_count() -> None:
    names = [f"model.layers.{i}.mlp.switch_mlp.{p}.weight" for i in (0, 1) for p in ("up", "down")]
    assert ExpertFiles({name: stacked(0, 8, 4) for name in names}).sizes == ExpertSizes(64, 8)


@pytest.mark.parametrize(
    "names",
    [
        ["model.layers.3.mlp.up_proj.weight"],
        [f"{LAYER}.shared_experts.up_proj.weight"],
        [f"{LAYER}.experts.1.up_proj.weight", f"{LAYER}.experts.2.up_proj.weight"],
    ],
)
def test_others_have_none(names: list[str]) -> None:
    files = ExpertFiles({name: stacked(0, 4, 4) for name in names})
    with pytest.raises(ValueError, match=r"up_proj\.weight is not in its files as experts"):
        files.experts_of(f"{LAYER}.switch_mlp", "up_proj.weight")
