"""Adapters come and go; what they cost, and which are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.compute.adapters.adapters import AdapterStore
from omlx_server.compute.adapters.reading import AdaptedLinear, RankGroup
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.adapters import WEIGHTS, Adapter
from omlx_server.core.work import finish
from omlx_server.errors import AdapterUnusable
from omlx_server.models.adapters.files import read_adapter
from tests.adapters import ATTENTION, DENSE, save_adapter, write
from tests.arrays import plain
from tests.compute.kernels import kernels
from tests.tiny_models import load_tiny

TOKENS = mx.array([[5, 9, 2], [7, 1, 8]])


def loaded_with(directory: Path, *ranks: int, **options: Any) -> tuple[LoadedModel, list[Adapter]]:
    loaded = load_tiny("llama")
    made = [
        save_adapter(directory / f"a{number}", loaded.model, seed=number, rank=rank, **options)
        for number, rank in enumerate(ranks)
    ]
    for adapter in made:
        finish(loaded.adapters.loading(loaded.model, adapter))
    return loaded, made


def forward(loaded: LoadedModel, *rows: Adapter | None) -> mx.array:
    with loaded.adapters.using(rows):
        logits: mx.array = loaded.model(TOKENS[: len(rows)])
    return logits


# -- what they cost ----------------------------------------------------------------------


def test_a_step_whose_rows_have_none_launches_what_it_did_before(tmp_path: Path) -> None:
    before = kernels(load_tiny("llama").model(TOKENS))
    loaded, made = loaded_with(tmp_path, 4, 4)
    assert kernels(forward(loaded, None, None)) == before
    forward(loaded, made[0], None)
    assert kernels(loaded.model(TOKENS)) == before
    assert type(loaded.model.layers[0].self_attn.q_proj) is nn.Linear


@pytest.mark.parametrize("adapters", [1, 2, 4])
def test_the_number_of_kernels_does_not_grow_with_the_adapters(
    adapters: int, tmp_path: Path
) -> None:
    """Of one rank: two products, a scale and a sum for each layer that has adapters."""
    loaded, made = loaded_with(tmp_path, *[4] * adapters)
    more = kernels(forward(loaded, made[0], made[-1]))
    layers = len(ATTENTION) * 2
    assert more.count("GatherMM") == 2 * layers
    assert len(more) - len(kernels(loaded.model(TOKENS))) <= 6 * layers + 4


def test_what_an_adapter_adds_to_a_row_is_the_same_to_the_bit_beside_any_others() -> None:
    silent, rows = nn.Linear(48, 40), 5
    silent.update({"weight": mx.zeros((40, 48)), "bias": mx.zeros((40,))})
    adapters = [Adapter(bytes([n]) * 32, f"{n}", Path(), 4, 0.3 + n, 0) for n in range(3)]
    matrices = [
        {"layer": (mx.random.normal((48, 4), key=key), mx.random.normal((4, 40), key=key))}
        for key in mx.random.split(mx.random.key(1), 3)
    ]
    inputs = mx.random.normal((rows, 3, 48), key=mx.random.key(2))

    def added(order: list[int], beside: list[int | None]) -> mx.array:
        group = RankGroup(4)
        for number in order:
            group = finish(group.joined(adapters[number], matrices[number]))
        found = group.slots_of([None if n is None else adapters[n] for n in beside])
        assert found is not None
        layer = AdaptedLinear(silent, [(group.stacks["layer"], found)])
        return layer(mx.concatenate([inputs[:1]] * len(beside)))[0]

    alone = added([0], [0])
    assert mx.any(alone != 0).item()
    cases: list[tuple[list[int], list[int | None]]] = [
        ([0, 1], [0, 1]),
        ([2, 1, 0], [0, None, 2, 1]),
        ([1, 0], [0, 0]),
    ]
    for order, beside in cases:
        assert mx.array_equal(added(order, beside), alone).item()


def test_their_bytes_are_counted_and_known_before(tmp_path: Path) -> None:
    """Of one rank each layer has a slot for each, and one of zeros, whoever has the layer."""
    loaded, made = loaded_with(tmp_path, 4, 8, keys=DENSE)
    assert loaded.adapters.nbytes == 2 * sum(adapter.nbytes for adapter in made)
    assert loaded.adapters.token_bytes == 4 * 64 + 4 * 8 + 12 * 96
    last = loaded.model.layers[-1:]
    others = [
        save_adapter(tmp_path / "same", loaded.model, seed=5, keys=DENSE),
        save_adapter(tmp_path / "last", loaded.model, seed=6, layers=len(last), keys=DENSE),
        save_adapter(tmp_path / "more", loaded.model, seed=7, keys=["mlp.gate_proj"]),
        save_adapter(tmp_path / "rank", loaded.model, seed=8, rank=2),
    ]
    for adapter in others:
        known = loaded.adapters.nbytes_with(adapter)
        assert loaded.adapters.needs(adapter) > known - loaded.adapters.nbytes
        slices = sum(1 for _ in loaded.adapters.loading(loaded.model, adapter))
        assert slices == 1  # a piece of the file; layers this small have none of their own
        assert loaded.adapters.nbytes == known
    for adapter in (*made, *others):
        rank = loaded.adapters._groups[adapter.rank].nbytes
        left = loaded.adapters.nbytes - rank + loaded.adapters.needs_without(adapter)
        finish(loaded.adapters.unloading(adapter))
        assert loaded.adapters.nbytes == left


# -- they come and go --------------------------------------------------------------------


def test_one_that_goes_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    loaded, made = loaded_with(tmp_path, 4, 4, 8)
    before = plain(forward(loaded, made[1], made[2]))
    finish(loaded.adapters.unloading(made[0]))
    assert plain(forward(loaded, made[1], made[2])) == before
    for adapter in made[1:]:
        finish(loaded.adapters.unloading(adapter))
    assert loaded.adapters.nbytes == loaded.adapters.token_bytes == 0
    with pytest.raises(RuntimeError, match="'a1' is not loaded"):
        forward(loaded, made[1], made[2])


def test_nobody_counts_on_one_that_is_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a request would be queued for it, and find it gone in the middle of its answer."""
    monkeypatch.setattr("omlx_server.compute.adapters.reading.SLICE_BYTES", 1)
    loaded, (first, _) = loaded_with(tmp_path, 4, 4)
    work = loaded.adapters.unloading(first)
    next(work)
    assert not loaded.adapters.touch(first)
    work.close()
    assert loaded.adapters.touch(first)
    assert forward(loaded, first).shape[0] == 1


def test_adapters_of_other_layers_share_a_stack(tmp_path: Path) -> None:
    loaded, (first,) = loaded_with(tmp_path, 4)
    other = save_adapter(tmp_path / "b", loaded.model, seed=7, keys=["mlp.up_proj"])
    alone = forward(loaded, first), forward(load_tiny("llama"), None)
    finish(loaded.adapters.loading(loaded.model, other))
    together = forward(loaded, first, other)
    assert mx.allclose(together[:1], alone[0], atol=1e-4).item()
    finish(loaded.adapters.unloading(first))
    assert mx.allclose(forward(loaded, None, other)[1:], together[1:], atol=1e-4).item()


def test_a_forward_that_raises_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    loaded, made = loaded_with(tmp_path, 4)
    before = plain(loaded.model(TOKENS))
    with pytest.raises(ValueError, match="in the middle"), loaded.adapters.using(made):
        raise ValueError("in the middle")
    assert plain(loaded.model(TOKENS)) == before


# -- what is refused ---------------------------------------------------------------------


Arrays = dict[str, mx.array]
FIRST = "model.layers.0.self_attn.q_proj"


def without_b(arrays: Arrays) -> None:
    del arrays[f"{FIRST}.lora_b"]


def wider(arrays: Arrays) -> None:
    arrays[f"{FIRST}.lora_a"] = mx.zeros((65, 4))


def further_layer(arrays: Arrays) -> None:
    for side, shape in (("a", (64, 4)), ("b", (4, 64))):
        arrays[f"model.layers.7.self_attn.q_proj.lora_{side}"] = mx.zeros(shape)


def odd_index(arrays: Arrays) -> None:
    for side in ("a", "b"):
        arrays[f"model.layers.01.self_attn.q_proj.lora_{side}"] = arrays[f"{FIRST}.lora_{side}"]


def no_layer(arrays: Arrays) -> None:
    for side, shape in (("a", (64, 4)), ("b", (4, 64))):
        arrays[f"model.norm.lora_{side}"] = mx.zeros(shape)


def magnitude(arrays: Arrays) -> None:
    arrays[f"{FIRST}.m"] = mx.zeros((64,))


def nothing(arrays: Arrays) -> None:
    arrays.clear()
    arrays["lora_c"] = mx.zeros((1,))


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (without_b, "one of the two matrices of model.layers.0.self_attn.q_proj is missing"),
        (wider, r"has \(65, 4\) and \(4, 64\); the model needs \(64, 4\) and \(4, 64\)"),
        (further_layer, "the model has no layer model.layers.7.self_attn.q_proj"),
        (odd_index, r"the model has no layer model.layers.01.self_attn.q_proj"),
        (no_layer, "model.norm is no linear layer, but RMSNorm"),
        (magnitude, "model.layers.0.self_attn.q_proj.m is no matrix of LoRA"),
        (nothing, "lora_c is no matrix of LoRA"),
    ],
)
def test_files_that_do_not_fit_the_model_are_refused(
    break_it: Callable[[Arrays], None], says: str, tmp_path: Path
) -> None:
    loaded = load_tiny("llama")
    good = save_adapter(tmp_path / "good", loaded.model)
    arrays = dict(mx.load(str(good.path / WEIGHTS)))  # type: ignore[arg-type]
    break_it(arrays)
    config = {"lora_parameters": {"rank": 4, "scale": 2.0}}
    write(tmp_path / "bad", config, arrays)
    with pytest.raises(AdapterUnusable, match=says) as refused:
        finish(loaded.adapters.loading(loaded.model, read_adapter(tmp_path / "bad", "bad")))
    assert refused.value.message.startswith("the adapter 'bad' can't be used: ")
    assert not loaded.adapters.loaded
    assert loaded.adapters.nbytes == 0


def test_the_experts_of_a_mixture_are_refused_by_their_name(tmp_path: Path) -> None:
    loaded = load_tiny("qwen3_moe")
    adapter = save_adapter(tmp_path / "a", loaded.model, keys=["mlp.switch_mlp.up_proj"])
    says = "switch_mlp.up_proj is no linear layer, but the experts of a mixture"
    with pytest.raises(AdapterUnusable, match=says):
        finish(loaded.adapters.loading(loaded.model, adapter))


def test_files_that_changed_since_their_digest_was_made_are_refused(tmp_path: Path) -> None:
    """Else blocks would be kept under the key of other weights."""
    loaded = load_tiny("llama")
    adapter = save_adapter(tmp_path / "a", loaded.model, seed=1)
    save_adapter(tmp_path / "a", loaded.model, seed=2)
    with pytest.raises(AdapterUnusable, match="its files have just changed"):
        finish(loaded.adapters.loading(loaded.model, adapter))


def test_a_layer_that_the_model_does_not_only_call_is_refused(tmp_path: Path) -> None:
    """As the up-projection of latent attention, whose weight the model reads."""
    loaded = load_tiny("llama")
    adapter = save_adapter(tmp_path / "a", loaded.model)
    attention = type(loaded.model.layers[0].self_attn)
    reads = type("Reads", (attention,), {"__call__": lambda self, *_: self.q_proj.weight})
    loaded.model.layers[0].self_attn.__class__ = reads
    with pytest.raises(AdapterUnusable, match="the model does not work with it: AttributeError"):
        finish(loaded.adapters.loading(loaded.model, adapter))
    assert loaded.adapters.nbytes == 0
    assert AdapterStore().nbytes == 0
