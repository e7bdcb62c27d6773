"""Files are read as the `gguf` package reads them, bit for bit; damaged ones are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from omlx_server.models.gguf.file import read_gguf
from tests.models.tiny_gguf import Tiny

KINDS = ("F32", "F16", "Q4_1", "Q8_0")


def assert_read_alike(path: Path) -> None:
    """All fields and all tensors, in their order."""
    file, oracle = read_gguf(path), GGUFReader(path)
    # The package adds three of its own about the head of the file.
    expected = {
        name: field.contents()
        for name, field in oracle.fields.items()
        if not name.startswith("GGUF.")
    }
    assert file.fields == expected
    assert [tensor.name for tensor in file.tensors] == [t.name for t in oracle.tensors]
    for tensor, other in zip(file.tensors, oracle.tensors, strict=True):
        wanted = dequantize(other.data, other.tensor_type)
        values = tensor.values()
        assert values.dtype == wanted.dtype == np.float32
        assert values.shape == wanted.shape
        assert values.tobytes() == wanted.tobytes(), tensor.name


def test_the_starter_model(starter_gguf: Path) -> None:
    assert_read_alike(starter_gguf)


@pytest.fixture
def every_type(tmp_path: Path) -> Path:
    """A file with a field and a tensor of each type, and another alignment than the usual one."""
    path = tmp_path / "every.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    fields: dict[str, Any] = {
        "uint8": 200, "int8": -5, "uint16": 60_000, "int16": -300, "uint32": 2**31,
        "int32": -(2**31), "uint64": 2**63, "int64": -(2**62), "float32": 0.5,
        "float64": 0.1, "bool": True, "string": "\u0120hé", "array": [1.5, 2.5],
    }  # fmt: skip
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(f"test.{name}", value)
    data = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)
    for name in KINDS:
        kind = GGMLQuantizationType[name]
        writer.add_tensor(f"of.{name}", quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_type_that_is_known(every_type: Path) -> None:
    assert_read_alike(every_type)


def test_a_tensor_of_another_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = GGUFWriter(path, "llama")
    kind = GGMLQuantizationType.Q5_0
    writer.add_tensor("t", quantize(np.ones((2, 32), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="t is of type 6, only F32"):
        read_gguf(path)


def test_a_file_that_was_cut_anywhere_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    whole, file = tiny.gguf.read_bytes(), tmp_path / "x.gguf"
    for length in range(0, len(whole), 97):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError):
            read_gguf(file)


def test_flipped_bytes_give_a_file_or_a_value_error(tiny: Tiny, tmp_path: Path) -> None:
    """Never another error, and never a list as long as a damaged number says."""
    whole, file = tiny.gguf.read_bytes(), tmp_path / "x.gguf"
    for at in range(0, min(len(whole), 6000), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        file.write_bytes(damaged)
        try:
            read_gguf(file)
        except ValueError:
            continue
