"""Reads the tensors of GGUF files as parameters of an MLX model. Any thread."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from omlx_server.compute.hardware import device_policy
from omlx_server.compute.weights.gguf.blocks import (
    Bytes,
    affine_blocks,
    low_then_high,
    pack_nibbles,
)
from omlx_server.compute.weights.weights import filling, quantise_like
from omlx_server.core.gguf.families import Family, family_of, is_used
from omlx_server.core.gguf.fields import Config
from omlx_server.core.gguf.forms import GROUP, MXFP4, check_types
from omlx_server.core.gguf.head import TensorPlace, parse_head
from omlx_server.core.work import Work, finish

_PLAIN = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
_PIECE_VALUES = 1 << 21  # unpacked at once
Arrays = dict[str, mx.array]
Classes = tuple[Callable[[Any], nn.Module], Any]


def loading_gguf(files: Sequence[Path], config: Config, classes: Classes) -> Work[nn.Module]:
    """Return a model with the weights of a file, or of all parts of one. Holds one tensor's bytes
    beside it. Raises OSError, and ValueError with the reason."""
    make_model, arguments = classes
    model: Any = make_model(arguments.from_dict(config))
    needs_no_float32 = getattr(model, "cast_predicate", lambda _: True)
    weights, family = Arrays(), None
    for file in files:
        with file.open("rb") as stream:
            head = parse_head(stream, file.stat().st_size)
            family = family or family_of(head)  # the first part has the fields
            check_types(head.tensors)
            for place in head.tensors:
                if is_used(place.name, config):
                    arrays = _parameter(stream, place, family, config)
                    arrays = _narrowed(arrays, needs_no_float32)
                    weights.update(arrays)
                    yield sum(array.nbytes for array in arrays.values())
    if config["model_type"] == "deepseek_v2":
        _join_kv(weights)
    _split_ba(weights, config)
    _split_gate_up(weights)
    weights = model.sanitize(weights) if hasattr(model, "sanitize") else weights
    quantise_like(model, weights)
    finish(filling(model, weights, files[0]))
    return model  # type: ignore[no-any-return]


def _parameter(stream: BinaryIO, place: TensorPlace, family: Family, config: Config) -> Arrays:
    """Return a tensor's arrays: its weight, with scales and biases if it is quantised."""
    name, kind = family.name_of(place.name), place.kind.name
    stream.seek(place.start)
    if kind in _PLAIN:
        plain = mx.array(_read(stream, place.nbytes)).view(_PLAIN[kind]).reshape(place.shape)
        arrays = {name: _less(plain, family.norm_offset) if _is_norm(name) else plain}
    elif kind == MXFP4:
        arrays = _named(name, *_mxfp4(_read(stream, place.nbytes), place.shape))
    else:
        arrays = _named(name, *_affine(stream, place))
    return {name: family.changed(place.name, array, config) for name, array in arrays.items()}


def _narrowed(arrays: Arrays, may_be: Callable[[str], bool]) -> Arrays:
    """Round floats to the device's type, if they are as wide. Waits for them."""
    numbers = device_policy.current().numbers
    for name, array in arrays.items():
        is_wide = array.itemsize >= numbers.size and mx.issubdtype(array.dtype, mx.floating)
        if is_wide and may_be(name):
            arrays[name] = array.astype(numbers)
    mx.eval(arrays)
    return arrays


def _named(name: str, weight: mx.array, scales: mx.array, biases: mx.array | None = None) -> Arrays:
    stem = name.removesuffix(".weight")
    arrays = {name: weight, f"{stem}.scales": scales}
    return arrays if biases is None else {**arrays, f"{stem}.biases": biases}


def _is_norm(name: str) -> bool:
    return name.endswith("norm.weight")


def _less(weight: mx.array, offset: float) -> mx.array:
    return weight - offset if offset else weight


def _read(stream: BinaryIO, nbytes: int) -> Bytes:
    data = np.fromfile(stream, np.uint8, nbytes)
    if len(data) < nbytes:
        raise ValueError("it is cut")
    return data


def _affine(stream: BinaryIO, place: TensorPlace) -> tuple[mx.array, mx.array, mx.array]:
    kind, pieces = place.kind, list[tuple[mx.array, ...]]()
    most_bytes = _PIECE_VALUES // kind.block * kind.nbytes
    for at in range(0, place.nbytes, most_bytes):
        data = _read(stream, min(most_bytes, place.nbytes - at))
        affine = affine_blocks(data.reshape(-1, kind.nbytes), kind.name)
        pieces.append(tuple(map(mx.array, (affine.packed(), affine.scale, affine.offset))))
    weight, scales, biases = (mx.concatenate(list(parts)) for parts in zip(*pieces, strict=True))
    rows = place.shape[:-1]
    return weight.reshape(*rows, -1), scales.reshape(*rows, -1), biases.reshape(*rows, -1)


def _mxfp4(data: Bytes, shape: tuple[int, ...]) -> tuple[mx.array, mx.array]:
    blocks = data.reshape(-1, 17)
    weight = mx.array(pack_nibbles(low_then_high(blocks[:, 1:])))
    return weight.reshape(*shape[:-1], -1), mx.array(blocks[:, 0]).reshape(*shape[:-1], -1)


def _join_kv(weights: Arrays) -> None:
    """Join the two halves of DeepSeek V2's kv_b_proj, of which mlx-lm's class makes no use alone.
    They are unpacked, as the groups of the first run across its rows."""
    for name in [name for name in weights if name.endswith(".embed_q.weight")]:
        stem = name.removesuffix(".embed_q.weight")
        key = _plain(weights, f"{stem}.embed_q").swapaxes(1, 2)
        joined = mx.concatenate([key, _plain(weights, f"{stem}.unembed_out")], axis=1)
        weights[f"{stem}.kv_b_proj.weight"] = joined.reshape(-1, joined.shape[-1])
        mx.eval(weights[f"{stem}.kv_b_proj.weight"])


def _split_ba(weights: Arrays, config: Config) -> None:
    """Split the rows of Qwen 3 Next's in_proj_ba, as Qwen 3.5 has them: of each key head those of
    b come first, then those of a."""
    for name in [name for name in weights if ".in_proj_ba." in name]:
        rows = weights.pop(name)
        heads = rows.reshape(config["linear_num_key_heads"], 2, -1, rows.shape[-1])
        for i, part in enumerate("ba"):
            weights[name.replace("_ba", f"_{part}")] = heads[:, i].reshape(-1, rows.shape[-1])


def _split_gate_up(weights: Arrays) -> None:
    """Split experts' gate_up_proj, the first half of whose rows is gate_proj."""
    for name in [name for name in weights if ".gate_up_proj." in name and "switch" in name]:
        gate, up = mx.split(weights.pop(name), 2, axis=-2)
        weights[name.replace("gate_up_proj", "gate_proj")] = gate
        weights[name.replace("gate_up_proj", "up_proj")] = up


def _plain(weights: Arrays, stem: str) -> mx.array:
    weight = weights.pop(f"{stem}.weight")
    if f"{stem}.scales" not in weights:
        return weight
    scales, biases = weights.pop(f"{stem}.scales"), weights.pop(f"{stem}.biases", None)
    if biases is None:
        return mx.dequantize(weight, scales, mode="mxfp4", group_size=GROUP, bits=4)
    bits = weight.shape[-1] // scales.shape[-1]
    return mx.dequantize(weight, scales, biases, group_size=GROUP, bits=bits)
