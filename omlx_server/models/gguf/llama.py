"""Converts the starter's GGUF file to a model directory in MLX layout, with float32 weights, all in
memory.

`mx.load` is not used: it rounds, and misreads some quantisations without an error.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from omlx_server.core.gguf.families import config_of, family_of
from omlx_server.core.gguf.fields import Config
from omlx_server.core.gguf.head import GgufHead
from omlx_server.models import json_file
from omlx_server.models.gguf.file import Array, GgufFile, read_gguf
from omlx_server.models.gguf.tokenizer import save_tokenizer
from omlx_server.models.progress import ProgressListener


def convert(
    gguf: Path, out: Path, sampling: Mapping[str, float], progress: ProgressListener
) -> None:
    """Write config, weights and the tokenizer's files into the existing directory `out`.
    `sampling` are the makers' values."""
    file = read_gguf(gguf)
    config = _model_config(file.head)
    save_tokenizer(file.head.fields, out, config["max_position_embeddings"], sampling)
    json_file.write(out / "config.json", config)
    _save(_weights(file, config, progress), out / "model.safetensors")


def _model_config(head: GgufHead) -> Config:
    fields = head.fields
    return {
        "architectures": ["LlamaForCausalLM"],
        **config_of(head),
        "hidden_act": "silu",
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _weights(file: GgufFile, config: Config, progress: ProgressListener) -> dict[str, Array]:
    family, weights = family_of(file.head), dict[str, Array]()
    places = file.head.tensors
    for done, place in enumerate(places, start=1):
        weight = family.changed(place.name, file.values(place), config)
        weights[family.name_of(place.name)] = np.ascontiguousarray(weight)
        progress.update("convert", done, len(places))
    return weights


def _save(weights: dict[str, Array], path: Path) -> None:
    path.touch()
    mode = path.stat().st_mode
    save_file(weights, path, metadata={"format": "mlx"})
    # safetensors replaces the file with one that only its owner may read.
    path.chmod(mode)
