"""Files of before, and with more than the model: DeepSeek's whole kv_b_proj, layers behind."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from omlx_server.compute.model.loader import load
from omlx_server.models.gguf.view import view_of
from tests.gguf_models import WrittenModel, write_model

TOKENS = mx.array([[5, 9, 2, 7, 1, 3, 8, 8, 4, 6, 2, 9, 30, 40, 50]])
Array = np.ndarray
Tensors = dict[str, Array]


def rewritten(
    written: WrittenModel, change: Callable[[Tensors], Tensors], **fields: int | None
) -> Path:
    """Write a file again with other tensors and fields; None takes one away."""
    reader, path = GGUFReader(written.file), written.file.with_name("again.gguf")
    name = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(path, name)
    changes = {f"{name}.{key}": value for key, value in fields.items()}
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")) and key not in changes:
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)
    for key, value in changes.items():
        if value is not None:
            writer.add_uint32(key, value)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    for tensor, array in change(tensors).items():
        writer.add_tensor(tensor, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def check_logits(written: WrittenModel, file: Path) -> None:
    loaded = load(view_of(file, file.parent / "views"))
    expected, got = (model(TOKENS) for model in (written.model, loaded.model))
    np.testing.assert_allclose(np.array(got), np.array(expected), atol=2e-4)


def with_whole_kv_b(tensors: Tensors) -> Tensors:
    """Heads of 32 values without positions and 32 values of v, each of 64 ranks."""
    for name in [name for name in tensors if "attn_k_b" in name]:
        key, value = tensors.pop(name), tensors.pop(name.replace("attn_k_b", "attn_v_b"))
        whole = [np.concatenate([k.T, v]) for k, v in zip(key, value, strict=True)]
        tensors[name.replace("attn_k_b", "attn_kv_b")] = np.concatenate(whole)
    return tensors


@pytest.mark.parametrize("architecture", ["deepseek2", "deepseek3"])
def test_deepseek_of_before_has_whole_heads(architecture: str, tmp_path: Path) -> None:
    written = write_model(tmp_path, architecture, ["F32"])
    lengths: dict[str, int | None] = {"attention.key_length": 48, "attention.value_length": 32}
    lengths |= {"attention.key_length_mla": None, "attention.value_length_mla": None}
    check_logits(written, rewritten(written, with_whole_kv_b, **lengths))


def with_a_layer_behind(tensors: Tensors) -> Tensors:
    behind = {name: array for name, array in tensors.items() if name.startswith("blk.1.")}
    more = {name.replace("blk.1.", "blk.2."): array for name, array in behind.items()}
    return {**tensors, **more, "blk.2.nextn.eh_proj.weight": np.zeros((128, 256), np.float32)}


def test_a_layer_that_guesses_more_tokens_is_left_out(tmp_path: Path) -> None:
    written = write_model(tmp_path, "glm4moe", ["F32"])
    file = rewritten(written, with_a_layer_behind, block_count=3, nextn_predict_layers=1)
    check_logits(written, file)
    assert load(view_of(file, tmp_path / "views")).model.args.num_hidden_layers == 2
