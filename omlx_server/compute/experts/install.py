"""Leaves the experts of an opened model on the disk. Mlx thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.switch_layers import SwitchGLU

from omlx_server.compute.experts.layer import ExpertsOnDisk, SlotMemory
from omlx_server.compute.experts.reader import ExpertReader
from omlx_server.core.experts.counts import ExpertCounts
from omlx_server.core.experts.files import ExpertFiles, StoredTensor

_DTYPES = {
    "BF16": mx.bfloat16,
    "F16": mx.float16,
    "F32": mx.float32,
    "U8": mx.uint8,
    "U32": mx.uint32,
}
_ROUTERS = ("gate", "router")


@dataclass(frozen=True, slots=True)
class DiskExperts:
    """The experts of a loaded model that stay on the disk."""

    slots: int  # of each layer
    counts: ExpertCounts


def leave_on_disk(model: nn.Module, files: ExpertFiles, slots: int) -> DiskExperts:
    """Give each layer memory for `slots` experts. The model's arrays must be lazy. Raises
    ValueError for one whose experts can't be read one by one."""
    reader = ExpertReader()
    modules = dict(model.named_modules())
    paths = [path for path, module in modules.items() if type(module) is SwitchGLU]
    if not paths:
        raise ValueError("its experts are of a form that can't be left on the disk")
    layers = list[tuple[ExpertsOnDisk, Any]]()
    for number, path in enumerate(paths):
        layer = _on_disk(path, modules[path], files, reader, slots, check=number == 0)
        model.update_modules(tree_unflatten([(path, layer)]))
        layers.append((layer, _router(modules[path.rpartition(".")[0]])))
    for (layer, _), (following, router) in pairwise(layers):
        if router is not None:
            layer.guess_for(following, router)
    return DiskExperts(slots, reader.counts)


def _on_disk(
    path: str,
    whole: SwitchGLU,
    files: ExpertFiles,
    reader: ExpertReader,
    slots: int,
    *,
    check: bool,
) -> ExpertsOnDisk:
    parameters: Any = tree_flatten(whole.parameters())
    stored = [_stored(files, path, name, array) for name, array in parameters]
    slots = min(slots, len(stored[0]))
    memory = SlotMemory(stored, slots)
    if check:
        _check(parameters, memory, reader)
    arrays = [
        (name, raw.view(array.dtype).reshape(slots, *array.shape[1:]))
        for raw, (name, array) in zip(memory.arrays, parameters, strict=True)
    ]
    whole.update(tree_unflatten(arrays))
    mx.eval(whole.parameters())
    return ExpertsOnDisk(whole, memory, reader)


def _stored(files: ExpertFiles, path: str, name: str, array: mx.array) -> Sequence[StoredTensor]:
    stored = files.experts_of(path, name)
    expected = (array.shape[0], array.dtype, tuple(array.shape[1:]))
    for one in stored:
        if (len(stored), _DTYPES.get(one.dtype), one.shape) != expected:
            raise ValueError(f"{path}.{name} is not in its files as it is computed with")
    return stored


def _check(parameters: Any, memory: SlotMemory, reader: ExpertReader) -> None:
    # mlx-lm may change or reorder what the files hold. Checks, too, that MLX sees what is written.
    for expert in (0, parameters[0][1].shape[0] - 1):
        reader.read(memory.targets(expert, 0)).result()
        for raw, (name, array) in zip(memory.arrays, parameters, strict=True):
            expected = mx.contiguous(array[expert]).reshape(-1).view(mx.uint8)
            if not mx.array_equal(raw[0], expected):
                raise ValueError(f"{name} of its experts is stored otherwise than computed with")


def _router(block: nn.Module) -> Any:
    return next((block[name] for name in _ROUTERS if name in block), None)
