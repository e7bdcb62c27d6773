"""Finds and reads the weight files of a model, and fills the model with them. Any thread."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import infer_quant_config

from omlx_server.core.crash import Crash, guarded
from omlx_server.core.model_files.weights import GGUF_LINKS, INDEX, indexed
from omlx_server.core.work import Work
from omlx_server.errors import ModelUnavailable, one_line

_GENERATION = "generation_config.json"
T = TypeVar("T")

_SLICE_BYTES = 128 << 20
# Stored weights with these prefixes may be left over: they belong to heads that are not used.
_MAY_BE_UNUSED = ("cls.", "lm_head.", "pooler.", "classifier.", "embeddings.position_ids")
_MOST_NAMES = 4  # in a message


def weight_files(directory: Path) -> list[Path]:
    """Return the files that the index names, else model*.safetensors, else the parts of a GGUF
    file. Raises ModelUnavailable."""
    index = directory / INDEX
    if not index.is_file():
        return sorted(directory.glob("model*.safetensors")) or gguf_files(directory)
    try:
        return [directory / name for name in indexed(json.loads(index.read_bytes()))]
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{index} can't be read: {one_line(error)}") from error


def gguf_files(directory: Path) -> list[Path]:
    return sorted(directory.glob(GGUF_LINKS))


def lazy_weights(directory: Path) -> dict[str, mx.array]:
    """Return all arrays, not read yet. Raises ModelUnavailable."""
    arrays: dict[str, mx.array] = {}
    for file in weight_files(directory):
        try:
            loaded: Any = mx.load(str(file))
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelUnavailable(f"can't read {file}: {one_line(error)}") from error
        arrays.update(loaded)
    return arrays


@contextmanager
def view_of(directory: Path) -> Iterator[Path]:
    """Yield a directory with the right files only for mlx-lm, which reads every
    model*.safetensors. It is `directory` itself, or has links to its files."""
    left_out = set(directory.glob("model*.safetensors")) - set(weight_files(directory))
    # mlx-lm fails on a generation_config.json that is no JSON object.
    if not _is_missing_or_object(directory / _GENERATION):
        left_out.add(directory / _GENERATION)
    if not left_out:
        yield directory
        return
    with TemporaryDirectory(prefix="omlx-") as view:
        for file in set(directory.iterdir()) - left_out:
            Path(view, file.name).symlink_to(file.absolute())
        yield Path(view)


def _is_missing_or_object(file: Path) -> bool:
    """Return whether a file is not there, or holds a JSON object."""
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except FileNotFoundError:
        return True
    except (OSError, ValueError, RecursionError):
        return False


def reading(model: nn.Module, path: Path) -> Work[None]:
    """Read lazy weights, in slices. Waits for each. Raises ModelUnavailable."""
    arrays = iter(dict(tree_flatten(model.parameters())).values())
    while to_read := _next_slice(arrays):
        guarded_load(path, partial(mx.eval, to_read))
        yield sum(array.nbytes for array in to_read)


def _next_slice(arrays: Iterator[mx.array]) -> list[mx.array]:
    taken, nbytes = list[mx.array](), 0
    for array in arrays:
        taken.append(array)
        nbytes += array.nbytes
        if nbytes >= _SLICE_BYTES:
            break
    return taken


def guarded_load(path: Path, work: Callable[[], T]) -> T:
    """Return the result of `work`; any error of it becomes ModelUnavailable."""
    result = guarded(work)
    if not isinstance(result, Crash):
        return result
    raise _unavailable(path, result) from result.error


def guarded_loading(path: Path, work: Work[T]) -> Work[T]:
    """Do `work` in its slices; any error of it becomes ModelUnavailable."""
    with closing(work):
        while True:
            read = guarded(next, work)
            if isinstance(read, Crash) and isinstance(read.error, StopIteration):
                result: T = read.error.value
                return result
            if isinstance(read, Crash):
                raise _unavailable(path, read) from read.error
            yield read


def _unavailable(path: Path, crash: Crash) -> ModelUnavailable:
    return ModelUnavailable(
        f"can't load the model in {path}: {crash.reason}",
        hint="the directory must hold an MLX-layout model that mlx-lm supports",
    )


def filling(module: nn.Module, weights: Mapping[str, mx.array], source: Path) -> Work[None]:
    """Put `weights` into the module, in slices. Raises ModelUnavailable if they don't fit."""
    parameters: Any = tree_flatten(module.parameters())
    shapes = {name: array.shape for name, array in parameters}
    missing = [name for name in shapes if name not in weights]
    used = {name: weights[name] for name in shapes if name in weights}
    misshaped = [
        f"{name} {array.shape} instead of {shapes[name]}"
        for name, array in used.items()
        if array.shape != shapes[name]
    ]
    unknown = [n for n in weights if n not in shapes and not n.startswith(_MAY_BE_UNUSED)]
    _refuse_if_any("has no weights called", missing, source)
    _refuse_if_any("has weights of another shape:", misshaped, source)
    _refuse_if_any("has weights that this architecture does not know:", unknown, source)
    module.load_weights(list(used.items()))
    module.eval()
    yield
    yield from reading(module, source)


def quantise_like(module: nn.Module, weights: Mapping[str, mx.array]) -> None:
    """Quantise the layers that have scales in `weights`, in the format of these. Scales that don't
    fit their layer are left for `filling` to refuse."""
    arrays = dict(weights)

    def quant_config(path: str, layer: Any) -> bool | dict[str, Any]:
        weight, scales = arrays.get(f"{path}.weight"), arrays.get(f"{path}.scales")
        if weight is None or scales is None or not hasattr(layer, "to_quantized"):
            return False
        if scales.ndim != layer.weight.ndim:
            return False
        groups, width = int(scales.shape[-1]), int(layer.weight.shape[-1])
        if not 0 < groups <= width or width % groups:
            return False
        config: dict[str, Any] = infer_quant_config(path, layer, arrays)
        return config

    nn.quantize(module, class_predicate=quant_config)


def _refuse_if_any(problem: str, names: list[str], source: Path) -> None:
    if names:
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise ModelUnavailable(f"{source} {problem} {', '.join(sorted(names)[:_MOST_NAMES])}{more}")
