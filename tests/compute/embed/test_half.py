"""Models in half precision compute in it, and their results are float32."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tests.compute.embed import tiny
from tests.compute.embed.loading import collect, load_cross_encoder, load_embedder


def save_half(directory: Path, case: str, dtype: mx.Dtype) -> Path:
    weights = {name: mx.array(w).astype(dtype) for name, w in tiny.weights_of(case).items()}
    tiny.save(directory, case)
    mx.save_safetensors(str(directory / "model.safetensors"), weights)
    return directory


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("case", ["BertModel", "XLMRobertaModel", "Qwen3Model"])
def test_vectors(tmp_path: Path, case: str, dtype: mx.Dtype) -> None:
    inputs = tiny.inputs_of(case)
    whole = load_embedder(tiny.save(tmp_path / "whole", case))
    half = load_embedder(save_half(tmp_path / "half", case, dtype))
    assert half.weight_bytes * 2 == whole.weight_bytes
    ours, exact = (mx.stack(collect(model.embed(inputs), 4)) for model in (half, whole))
    assert ours.dtype == mx.float32
    assert np.abs(np.linalg.norm(np.array(ours), axis=1) - 1).max() < 1e-6
    assert (np.array(ours) * np.array(exact)).sum(axis=1).min() > 0.99


def test_scores(tmp_path: Path) -> None:
    case = "BertForSequenceClassification"
    model = load_cross_encoder(save_half(tmp_path, case, mx.float16))
    scores = np.array(mx.stack(collect(model.score(tiny.inputs_of(case)), 4)))
    logits = np.array(tiny.cases()[case]["outputs"])[:, 0]
    assert np.abs(scores - 1 / (1 + np.exp(-logits))).max() < 0.02
