"""Experts that are read when they are needed compute what experts in memory compute."""

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.switch_layers import SwitchGLU

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.experts import layer as layers
from omlx_server.compute.experts import reader
from omlx_server.compute.experts.install import leave_on_disk
from omlx_server.compute.experts.layer import ExpertsOnDisk
from omlx_server.compute.experts.reader import Target
from omlx_server.compute.hardware import device
from omlx_server.compute.model.loader import open_lazily
from omlx_server.core.device_errors import UnreadableWeights
from omlx_server.models.layout import expert_files
from tests import tiny_models
from tests.architectures.experts import EXPERTS as WITH_EXPERTS
from tests.compute.experts.on_disk import (
    LENGTHS,
    array_bytes,
    opened,
    quantised_tiny,
    stored_one_by_one,
    weights_of,
)
from tests.sweeps import daily

COUNT = 4
FAMILIES = [
    "qwen3_moe",
    "qwen3_next",
    "gpt_oss",
    "glm4_moe",
    "deepseek_v3",
    "mixtral",
    "gemma4+experts",
    "longcat_flash",
    "kimi_k3",
]


def logits(model: nn.Module, lengths: tuple[int, ...] = LENGTHS) -> Iterator[mx.array]:
    caches, key = cache_ops.new_caches(model), mx.random.key(7)
    for length in lengths:
        key, _ = mx.random.split(key)
        tokens = mx.random.randint(0, 190, (1, length), key=mx.random.split(key)[0])
        output = model(tokens, cache=caches)
        mx.eval(output)
        yield output


def assert_equal_logits(directory: Path, slots: int) -> None:
    model, experts = opened(directory, slots)
    for output, expected in zip(logits(model), logits(open_lazily(directory)), strict=True):
        assert mx.array_equal(output, expected)
    assert experts.counts.used > experts.counts.missing > 0


@pytest.mark.parametrize("slots", range(1, COUNT + 1))
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_whole_model(family: str, slots: int, tmp_path: Path) -> None:
    tiny_models.save_tiny(tmp_path, family)
    assert_equal_logits(tmp_path, slots)


OTHERS = [name for name in WITH_EXPERTS if name not in FAMILIES]


@pytest.mark.parametrize("family", daily(OTHERS, ["deepseek_v41", "granitemoe", "llama4"]))
def test_so_are_those_of_other_families_or_they_are_refused(family: str, tmp_path: Path) -> None:
    tiny_models.save_tiny(tmp_path, family)
    modules = open_lazily(tmp_path).modules()
    if any(type(module) is SwitchGLU for module in modules):
        assert_equal_logits(tmp_path, 2)
    else:
        with pytest.raises(ValueError, match="form that can't be left on the disk"):
            opened(tmp_path, 2)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_quantised_experts_stay_quantised(mode: str, slots: int, tmp_path: Path) -> None:
    quantised_tiny(tmp_path, "qwen3_moe", mode)
    assert_equal_logits(tmp_path, slots)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "deepseek_v3"])
def test_experts_in_tensors_of_their_own_are_read_so(family: str, tmp_path: Path) -> None:
    tiny_models.save_tiny(tmp_path, family)
    stored_one_by_one(tmp_path)
    assert_equal_logits(tmp_path, 2)


def test_rows_of_a_batch_share_what_is_read(tmp_path: Path) -> None:
    tiny_models.save_tiny(tmp_path, "qwen3_moe")
    model, experts = opened(tmp_path, 2)
    tokens = mx.array([[5, 6, 7]] * 4)
    expected = open_lazily(tmp_path)(tokens)
    assert mx.array_equal(model(tokens), expected)
    assert experts.counts.missing <= COUNT  # of the one layer


def test_memory_and_reads_are_those_of_the_slots(tmp_path: Path) -> None:
    tiny_models.save_tiny(tmp_path, "mixtral")
    whole = open_lazily(tmp_path)
    total = array_bytes(whole)
    sizes = {slots: opened(tmp_path, slots) for slots in (1, 3)}
    of_one = (array_bytes(sizes[3][0]) - array_bytes(sizes[1][0])) // 2
    assert array_bytes(sizes[1][0]) == total - (COUNT - 1) * of_one
    model, experts = sizes[1]
    before, read_before = mx.get_active_memory(), experts.counts.bytes_read
    mx.reset_peak_memory()
    for _ in logits(model):
        pass
    counts, layers_of_experts = experts.counts, 2
    reads = (counts.bytes_read - read_before) * layers_of_experts / of_one
    assert reads == counts.missing + counts.guessed
    assert mx.get_active_memory() - before < array_bytes(model)  # no whole layer came to memory


def test_a_guess_is_read_before_it_is_needed(tmp_path: Path) -> None:
    tiny_models.save_tiny(tmp_path, "mixtral", num_hidden_layers=4)
    model, experts = opened(tmp_path, 3)
    for _ in logits(model, (1,) * 60):
        pass
    counts = experts.counts
    assert counts.guessed > counts.right > 0


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_slot_is_read_into_while_a_product_uses_it(
    slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.save_tiny(tmp_path, "mixtral", num_hidden_layers=1)
    model, _ = opened(tmp_path, slots)
    in_use, launched = set[int](), layers.ExpertsOnDisk._launch
    targets = layers.SlotMemory.targets

    def launch(self: ExpertsOnDisk, x: mx.array, ids: object, experts: list[int]) -> mx.array:
        in_use.update(self._slots.slot_of[expert] for expert in experts)
        return launched(self, x, ids, experts)  # type: ignore[arg-type]

    def read(self: layers.SlotMemory, expert: int, slot: int) -> list[Target]:
        assert slot not in in_use
        return targets(self, expert, slot)

    def wait() -> None:
        mx.synchronize()
        in_use.clear()

    monkeypatch.setattr(device, "wait", wait)
    monkeypatch.setattr(layers.ExpertsOnDisk, "_launch", launch)
    monkeypatch.setattr(layers.SlotMemory, "targets", read)
    for _ in logits(model):
        pass


def test_what_cannot_be_read_is_an_error_and_is_read_again(tmp_path: Path) -> None:
    tiny_models.save_tiny(tmp_path, "qwen3_moe")
    model, _ = opened(tmp_path, 2)
    mx.eval(model.parameters())
    file = tmp_path / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 8])
    with pytest.raises(UnreadableWeights, match="is cut"):
        list(logits(model))
    file.write_bytes(data)
    for output, expected in zip(logits(model), logits(open_lazily(tmp_path)), strict=True):
        assert mx.array_equal(output, expected)


def test_reads_that_are_late_or_fail_change_no_logit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.save_tiny(tmp_path, "mixtral")
    (model, experts), whole = opened(tmp_path, 3), open_lazily(tmp_path)
    rng, read, errors = random.Random(1), reader._read, 0

    def read_or_fail(files: Sequence[int], targets: Sequence[Target]) -> None:
        time.sleep(0.005 * (rng.random() < 0.2))
        if rng.random() < 0.3:
            targets[0][1][:] = bytes([rng.randrange(64)]) * len(targets[0][1])
            raise OSError("the disk has failed")
        read(files, targets)

    monkeypatch.setattr(reader, "_read", read_or_fail)
    for number in range(80):
        tokens = mx.array([[number + 5]])
        expected = whole(tokens)
        while True:
            try:
                output = model(tokens)
                break
            except UnreadableWeights:
                errors += 1
        assert mx.array_equal(output, expected)
    assert errors > 10
    assert experts.counts.guessed > 10


def test_experts_that_are_stored_in_another_order_are_refused(tmp_path: Path) -> None:
    tiny_models.save_tiny(tmp_path, "qwen3_moe")
    stored_one_by_one(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = weights_of(file)
    # As a class would that computes with other values than those of the files.
    first, last = (f"model.layers.1.mlp.experts.{i}.up_proj.weight" for i in (0, COUNT - 1))
    files_of_it = weights[first], weights[last]
    assert files_of_it[0].shape == files_of_it[1].shape
    model = open_lazily(tmp_path)
    weights[first], weights[last] = weights[last], weights[first]
    mx.eval(model.parameters(), weights)
    mx.save_safetensors(str(file), weights)
    files = expert_files(tmp_path)
    assert files is not None
    with pytest.raises(ValueError, match="stored otherwise"):
        leave_on_disk(model, files, 2)
