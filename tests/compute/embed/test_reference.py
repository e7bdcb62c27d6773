"""Our models against what transformers computed with the same weights."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.embed.yes_no import score
from omlx_server.compute.model.loader import load
from tests.compute.embed import tiny
from tests.compute.embed.loading import collect, load_cross_encoder, load_embedder

CLOSE = 1e-5
YES, NO = 5, 6
RERANKERS = [name for name in tiny.cases() if "Classification" in name]
ENCODERS = [name for name in tiny.cases() if "Model" in name and "Qwen3" not in name]
QWEN3 = ["Qwen3ForCausalLM", "Qwen3Model"]


def vectors_of(directory: Path, case: str) -> np.ndarray:
    inputs = tiny.inputs_of(case)
    vectors: np.ndarray = np.array(
        mx.stack(collect(load_embedder(directory).embed(inputs), len(inputs)))
    )
    return vectors


def unit(rows: list[list[float]]) -> np.ndarray:
    array = np.array(rows)
    normed: np.ndarray = array / np.linalg.norm(array, axis=1, keepdims=True)
    return normed


@pytest.mark.parametrize("case", ENCODERS)
def test_encoders(tmp_path: Path, case: str) -> None:
    means, firsts = zip(*tiny.cases()[case]["outputs"], strict=True)
    tiny.save(tmp_path, case)
    assert np.abs(vectors_of(tmp_path, case) - unit(list(means))).max() < CLOSE
    tiny.save_pooling(tmp_path, {"pooling_mode": "cls"}, "Normalize")
    assert np.abs(vectors_of(tmp_path, case) - unit(list(firsts))).max() < CLOSE


@pytest.mark.parametrize("case", QWEN3)
def test_qwen3_reads_the_last_token(tmp_path: Path, case: str) -> None:
    lasts = [output[0] for output in tiny.cases()[case]["outputs"]]
    vectors = vectors_of(tiny.save(tmp_path, case), case)
    assert np.abs(vectors - unit(lasts)).max() < CLOSE


@pytest.mark.parametrize("case", RERANKERS)
def test_cross_encoders(tmp_path: Path, case: str) -> None:
    inputs = tiny.inputs_of(case)
    model = load_cross_encoder(tiny.save(tmp_path, case))
    scores = np.array([value.item() for value in collect(model.score(inputs), len(inputs))])
    logits = np.array(tiny.cases()[case]["outputs"])[:, 0]
    assert np.abs(scores - 1 / (1 + np.exp(-logits))).max() < CLOSE


def test_yes_or_no(tmp_path: Path) -> None:
    case = "Qwen3ForCausalLM"
    model = load(tiny.save(tmp_path, case)).model
    inputs = tiny.inputs_of(case)
    scores = collect(score(model, [one.ids for one in inputs], yes=YES, no=NO), len(inputs))
    expected = [output[1] for output in tiny.cases()[case]["outputs"]]
    assert np.allclose([value.item() for value in scores], expected, atol=CLOSE)
