"""The converted weights, against values that are unpacked here byte by byte."""

import functools
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from safetensors import safe_open
from safetensors.numpy import load_file

from omlx_server.models import layout
from omlx_server.models.catalogue import STARTER
from omlx_server.models.gguf import llama
from omlx_server.models.progress import Silent
from tests.models.tiny_gguf import Array, Tiny


def q4_1_row(raw: bytes) -> list[float]:
    """Blocks of 20 bytes: scale, minimum, 16 bytes of two 4-bit values (low halves come first)."""
    values: list[float] = []
    for at in range(0, len(raw), 20):
        scale, low = struct.unpack_from("<ee", raw, at)
        packed = raw[at + 4 : at + 20]
        values += [scale * (byte & 15) + low for byte in packed]
        values += [scale * (byte >> 4) + low for byte in packed]
    return values


def q8_0_row(raw: bytes) -> list[float]:
    """Blocks of 34 bytes: scale, 32 signed bytes."""
    values: list[float] = []
    for at in range(0, len(raw), 34):
        (scale,) = struct.unpack_from("<e", raw, at)
        values += [scale * byte for byte in struct.unpack_from("<32b", raw, at + 2)]
    return values


@functools.cache
def offsets(gguf: Path) -> dict[str, int]:
    return {tensor.name: tensor.data_offset for tensor in GGUFReader(gguf).tensors}


def raw_row(gguf: Path, name: str, row: int, row_bytes: int) -> bytes:
    with gguf.open("rb") as file:
        file.seek(offsets(gguf)[name] + row * row_bytes)
        return file.read(row_bytes)


def converted_row(directory: Path, name: str, row: int) -> Array:
    with safe_open(directory / "model.safetensors", framework="numpy") as file:
        result: Array = file.get_slice(name)[row : row + 1][0]
    return result


@pytest.mark.parametrize(
    ("gguf_name", "name", "row"),
    [
        ("blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight", 0),
        ("blk.17.ffn_gate.weight", "model.layers.17.mlp.gate_proj.weight", 1535),
        ("blk.29.attn_v.weight", "model.layers.29.self_attn.v_proj.weight", 100),
        ("blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight", 575),
    ],
)
def test_q4_1_rows_equal_the_unpacked_bytes(
    starter_dir: Path, starter_gguf: Path, gguf_name: str, name: str, row: int
) -> None:
    expected = q4_1_row(raw_row(starter_gguf, gguf_name, row, 576 // 32 * 20))
    np.testing.assert_allclose(
        converted_row(starter_dir, name, row), expected, rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("row", [0, 2, 504, 49151])
def test_q8_0_embeddings_equal_the_unpacked_bytes(
    starter_dir: Path, starter_gguf: Path, row: int
) -> None:
    expected = q8_0_row(raw_row(starter_gguf, "token_embd.weight", row, 576 // 32 * 34))
    actual = converted_row(starter_dir, "model.embed_tokens.weight", row)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize(("letter", "heads"), [("q", 9), ("k", 3)])
def test_rows_of_q_and_k_are_in_hugging_face_order(
    starter_dir: Path, starter_gguf: Path, letter: str, heads: int
) -> None:
    half = 32
    for head in range(heads):
        for part in range(2):
            for i in range(0, half, 7):
                raw = raw_row(
                    starter_gguf, f"blk.5.attn_{letter}.weight", head * 64 + 2 * i + part, 360
                )
                name = f"model.layers.5.self_attn.{letter}_proj.weight"
                actual = converted_row(starter_dir, name, head * 64 + part * half + i)
                np.testing.assert_allclose(actual, q4_1_row(raw), rtol=1e-6, atol=1e-7)


RECORDED: list[tuple[str, int, list[float]]] = [
    ("model.embed_tokens.weight", 504, [0.10960388, 0.017436981, -0.094657898, 0.082202911]),
    ("model.layers.0.mlp.up_proj.weight", 7, [0.046142578, -0.12731934, -0.30078125, -0.25741577]),
    (
        "model.layers.0.self_attn.q_proj.weight",
        1,
        [-0.15917969, 0.39794922, -0.019897461, -1.2734375],
    ),
    (
        "model.layers.29.self_attn.k_proj.weight",
        97,
        [0.036773682, -0.28320312, 0.036773682, 0.07232666],
    ),
    (
        "model.layers.29.mlp.down_proj.weight",
        575,
        [-0.22918701, -0.039123535, -0.27670288, 0.24597168],
    ),
]


@pytest.mark.parametrize(("name", "row", "expected"), RECORDED)
def test_recorded_values(starter_dir: Path, name: str, row: int, expected: list[float]) -> None:
    actual = converted_row(starter_dir, name, row)[: len(expected)]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_starter_config(starter_dir: Path) -> None:
    config = json.loads((starter_dir / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["tie_word_embeddings"] is True
    assert (config["hidden_size"], config["num_hidden_layers"], config["head_dim"]) == (576, 30, 64)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (100000.0, 1e-05)
    assert (config["vocab_size"], config["max_position_embeddings"]) == (49152, 8192)
    assert STARTER.context == config["max_position_embeddings"]
    assert STARTER.weight_bytes["f32"] == layout.weight_bytes(starter_dir)
    assert config["eos_token_id"] == 2
    generation = json.loads((starter_dir / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]
    assert (generation["temperature"], generation["top_p"]) == (0.2, 0.9)


def test_weights_are_float32_and_marked_for_mlx(starter_dir: Path) -> None:
    with safe_open(starter_dir / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "mlx"}
        assert len(list(file.keys())) == 30 * 9 + 2
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}  # noqa: SIM118


def test_all_tensors_of_a_small_model_come_back(tiny: Tiny, tmp_path: Path) -> None:
    llama.convert(tiny.gguf, tmp_path, {}, Silent())
    weights = load_file(tmp_path / "model.safetensors")
    assert weights.keys() == tiny.weights.keys()
    for name, expected in tiny.weights.items():
        np.testing.assert_array_equal(weights[name], expected, err_msg=name)


def test_weights_are_as_readable_as_the_other_files(tiny: Tiny, tmp_path: Path) -> None:
    llama.convert(tiny.gguf, tmp_path, {}, Silent())
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_epsilon_is_written_as_people_write_it(tiny: Tiny, tmp_path: Path) -> None:
    llama.convert(tiny.gguf, tmp_path, {}, Silent())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-05
