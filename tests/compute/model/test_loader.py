"""Loading: dimensions, the fingerprint, and what is said of a directory that is no model."""

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from omlx_server.compute import FAST_BLAS
from omlx_server.compute.hardware import blas, device
from omlx_server.compute.model.fingerprint import file_states, fingerprint
from omlx_server.compute.model.loader import load, weight_bytes
from omlx_server.errors import ModelUnavailable
from tests.arrays import plain
from tests.compute.oracle import greedy
from tests.tiny_models import CONFIGS, VOCAB, load_tiny, make_model, save_tiny


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_saved_model_comes_back(tmp_path: Path, architecture: str) -> None:
    save_tiny(tmp_path, architecture)
    model, _ = make_model(architecture)
    loaded = load(tmp_path)
    assert greedy(loaded.model, [1, 2, 3], 8) == greedy(model, [1, 2, 3], 8)
    assert loaded.weight_bytes == weight_bytes(model)
    assert loaded.dims.vocab == VOCAB
    text = CONFIGS[architecture].get("text_config", CONFIGS[architecture])
    assert loaded.dims.layers == text["num_hidden_layers"]
    assert loaded.dims.dtype == "float32"


@pytest.mark.parametrize(
    ("architecture", "width"),
    [("llama", 96), ("gpt_oss", 2 * 96), ("deepseek_v3", 2 * 32), ("qwen3_next", 2 * 32)],
)
def test_a_token_is_widened_by_all_experts_that_it_goes_to(architecture: str, width: int) -> None:
    assert load_tiny(architecture).dims.intermediate == width


def test_the_fingerprint_knows_weights_config_and_tokenizer(tmp_path: Path) -> None:
    save_tiny(tmp_path / "a", "llama")
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    original = fingerprint(tmp_path / "a")
    seen = {original}
    for number, change in enumerate((_other_weights, _other_config, _other_tokenizer)):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "a", copy)
        assert fingerprint(copy) == original
        change(copy)
        seen.add(fingerprint(copy))
    assert len(seen) == 4


def _flip(file: Path, at: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))


def test_with_notes_every_byte_of_the_weights_counts(tmp_path: Path) -> None:
    weights, notes = tmp_path / "model.safetensors", tmp_path / "notes" / "digests.json"
    weights.write_bytes(bytes(32 << 20))
    original = fingerprint(tmp_path, notes)
    unnoticed = 100_000  # between two samples
    _flip(weights, unnoticed)
    os.utime(weights, ns=(0, 1))
    assert fingerprint(tmp_path, notes) != original
    _flip(weights, unnoticed)
    os.utime(weights, ns=(0, 2))
    assert fingerprint(tmp_path, notes) == original
    notes.write_text("{not json")
    assert fingerprint(tmp_path, notes) == original


def test_a_file_that_has_not_changed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, notes = tmp_path / "model.safetensors", tmp_path / "notes" / "digests.json"
    weights.write_bytes(bytes(1000))
    original = fingerprint(tmp_path, notes)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert fingerprint(tmp_path, notes) == original


def test_other_weights_of_the_same_size_and_time_are_known(tmp_path: Path) -> None:
    """`cp -p` over the file of a download whose times are all the same."""
    weights, notes = tmp_path / "model.safetensors", tmp_path / "notes" / "digests.json"
    weights.write_bytes(bytes(32 << 20))
    os.utime(weights, ns=(0, 1))
    original = fingerprint(tmp_path, notes)
    _flip(weights, 100_000)  # between two samples
    os.utime(weights, ns=(0, 1))
    assert fingerprint(tmp_path, notes) != original


def test_other_weights_are_known_where_no_time_tells(tmp_path: Path) -> None:
    """Some file systems have no time of change of their own."""
    weights, notes = tmp_path / "model.safetensors", tmp_path / "notes" / "digests.json"
    weights.write_bytes(bytes(1000))
    original = fingerprint(tmp_path, notes)
    _flip(weights, 500)
    noted = json.loads(notes.read_text())
    noted[str(weights)]["state"] = file_states(tmp_path)[weights.name]
    notes.write_text(json.dumps(noted))
    assert fingerprint(tmp_path, notes) != original


def test_notes_that_cannot_be_written_cost_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    (tmp_path / "file").touch()
    fingerprint(tmp_path, tmp_path / "file" / "digests.json")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        # mlx-lm's olmo ends the process where a package is missing.
        ({"model_type": "olmo"}, "needs a package that is not installed"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "KeyError: 'factor'"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
    ],
)
def test_whatever_a_class_raises_is_told(
    tmp_path: Path, config: dict[str, object], why: str
) -> None:
    save_tiny(tmp_path, "llama")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    with pytest.raises(ModelUnavailable, match=re.escape(why)):
        load(tmp_path)


def _other_weights(directory: Path) -> None:
    file = str(directory / "model.safetensors")
    weights = mx.load(file)
    assert isinstance(weights, dict)
    scaled = {name: array * 1.001 for name, array in weights.items()}
    mx.save_safetensors(file, scaled, metadata={"format": "mlx"})


def _other_config(directory: Path) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "rope_theta": 500.0}))


def _other_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text('{"added_tokens": []}')


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "config.json"),
        ({"config.json": "{}"}, "model"),
        ({"config.json": '{"model_type": "no_such_thing"}'}, "model"),
        ({"config.json": "not json"}, "can't load"),
    ],
)
def test_a_directory_that_is_no_model_gets_one_line(
    tmp_path: Path, files: dict[str, str], says: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelUnavailable, match=says) as error:
        load(tmp_path)
    assert "\n" not in error.value.message


def test_code_in_a_model_directory_is_not_run(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_file": "evil.py"}))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelUnavailable):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_quantised_copy_keeps_the_directory_loadable(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", hidden_size=128, intermediate_size=128)
    before = load(tmp_path).weight_bytes
    device.quantize_in_place(tmp_path)
    after = load(tmp_path)
    assert after.weight_bytes < before * 0.4
    assert len(greedy(after.model, [1, 2, 3], 4)) == 4


@pytest.mark.skipif(sys.platform == "darwin", reason="Accelerate needs nothing")
def test_the_fast_blas_is_what_mlx_calls() -> None:
    if FAST_BLAS is None:
        pytest.skip("OpenBLAS is not installed; everything works without it, slower")
    openblas = ctypes.CDLL(FAST_BLAS)
    first_found = ctypes.CDLL(None).cblas_sgemm
    address = ctypes.cast(openblas.cblas_sgemm, ctypes.c_void_p).value
    assert ctypes.cast(first_found, ctypes.c_void_p).value == address
    assert blas.preload() == FAST_BLAS


@pytest.mark.parametrize(
    ("flags", "kernels"),
    [
        ("fpu avx avx2 fma avx512f avx512cd avx512bw avx512dq avx512vl amx_tile", "SkylakeX"),
        ("fpu avx avx2 fma avx512f avx512cd", "Haswell"),  # a Xeon Phi has no more of AVX-512
        ("fpu avx2", None),
        ("fp asimd evtstrm", None),  # an ARM
        ("", None),
    ],
)
def test_the_kernels_of_the_blas_suit_the_instructions(flags: str, kernels: str | None) -> None:
    assert blas.kernels_for(frozenset(flags.split())) == kernels


@pytest.mark.skipif(sys.platform == "darwin", reason="Accelerate needs nothing")
@pytest.mark.parametrize("wanted", [None, "Nehalem"])
def test_the_blas_in_use_has_the_kernels_that_were_chosen(wanted: str | None) -> None:
    kernels = wanted or blas.kernels_for(blas.instructions())
    if FAST_BLAS is None or kernels is None:
        pytest.skip("OpenBLAS is not installed, or chooses by itself")
    program = (
        "import ctypes; from omlx_server.compute import FAST_BLAS;"
        "name = ctypes.CDLL(FAST_BLAS).openblas_get_corename; name.restype = ctypes.c_char_p;"
        "print(name().decode())"
    )
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    env |= {"OPENBLAS_CORETYPE": wanted} if wanted else {}
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert ended.stdout.strip() == kernels, ended.stderr


def test_float32_products_are_right_with_the_blas_in_use() -> None:
    a = mx.random.normal((65, 33), key=mx.random.key(0))
    b = mx.random.normal((33, 47), key=mx.random.key(1))
    left, right = plain(a), plain(b)
    columns = list(zip(*right, strict=True))
    naive = [[sum(x * y for x, y in zip(r, c, strict=True)) for c in columns] for r in left]
    assert plain(mx.abs(a @ b - mx.array(naive)).max()) < 1e-4
