"""Models whose files were cut or replaced, told from sound ones by a look."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from omlx_server.models.damage import damage_in, damaged_weights
from tests.text import makers
from tests.tiny_models import save_tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As mlx-lm and tokenizers write it."""
    path = makers.save(tmp_path_factory.mktemp("damage") / "m", "byte_level")
    save_tiny(path, "llama")
    return path


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "m"))


def cut(file: Path, nbytes: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(nbytes)


@pytest.mark.parametrize("family", sorted(makers.FAMILIES))
def test_what_is_whole_has_nothing_said_of_it(tmp_path: Path, family: str) -> None:
    path = makers.save(tmp_path / "m", family)
    save_tiny(path, "llama")
    assert damage_in(path) == ""


def test_weights_of_any_writer_are_whole_up_to_their_last_byte(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for metadata in (None, {"format": "mlx"}):
        save_file({"a": np.zeros((3, 5)), "b": np.zeros(0)}, file, metadata=metadata)
        assert damaged_weights(tmp_path) == ""
        mx.save_safetensors(str(file), {"a": mx.zeros((3, 5)), "b": mx.ones(7)}, metadata or {})
        assert damaged_weights(tmp_path) == ""
        cut(file, file.stat().st_size - 1)
        assert "model.safetensors is cut" in damaged_weights(tmp_path)


def test_what_is_cut_says_how_much_is_there(model: Path) -> None:
    size = (model / "model.safetensors").stat().st_size
    cut(model / "model.safetensors", size // 2)
    assert damage_in(model) == f"model.safetensors is cut: {size // 2} of {size} bytes are there"
    for left in (0, 5, 8, 9, 100):
        cut(model / "model.safetensors", left)
        assert damage_in(model) == "model.safetensors is cut, or no safetensors file"


def test_of_several_files_each_is_looked_at(model: Path) -> None:
    (model / "model.safetensors").rename(model / "one.safetensors")
    shutil.copy(model / "one.safetensors", model / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert damage_in(model) == ""
    cut(model / "two.safetensors", 5000)
    assert damage_in(model).startswith("two.safetensors is cut")
    (model / "two.safetensors").unlink()
    assert damage_in(model).startswith("two.safetensors can't be read")
    (model / "model.safetensors.index.json").write_text("[]")
    assert "index.json can't be read" in damage_in(model)


@pytest.mark.parametrize("header", [b"[]", b"{", b'{"a": {"data_offsets": [0]}}', b"\xff\xfe"])
def test_a_header_that_is_none(model: Path, header: bytes) -> None:
    file = model / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(100))
    assert damage_in(model).startswith("model.safetensors can't be read")


@pytest.mark.parametrize("text", ["{}", "[]", '{"model": 1}', "", '{"model": {', "\0"])
def test_a_tokenizer_without_a_model(model: Path, text: str) -> None:
    (model / "tokenizer.json").write_text(text)
    assert damage_in(model).startswith("tokenizer.json can't be used")
    (model / "tokenizer.json").unlink()
    assert damage_in(model) == ""  # others are in other files
