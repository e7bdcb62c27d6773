"""Files are read as the `gguf` package reads them, bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from omlx_server.models.gguf.file import read_gguf

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
    assert file.head.fields == expected
    assert [tensor.name for tensor in file.head.tensors] == [t.name for t in oracle.tensors]
    for tensor, other in zip(file.head.tensors, oracle.tensors, strict=True):
        wanted = dequantize(other.data, other.tensor_type)
        values = file.values(tensor)
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
