"""all-MiniLM-L6-v2 from its wheel, text to vector, against what sentence-transformers gave."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.embed.embedder import Embedder
from omlx_server.compute.embed.pooling import Mode, Pooling
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.models.bundled.embedded import ensure
from omlx_server.models.catalogue import MINILM
from omlx_server.models.kind import kind_in
from omlx_server.settings import Settings
from omlx_server.text.ranking.pairs import InputEncoder
from tests.compute.embed.loading import collect, load_embedder
from tests.compute.embed.tiny import DATA


@pytest.fixture(scope="module")
def directory() -> Path:
    return ensure(MINILM, Settings().models.dirs[0])


@pytest.fixture(scope="module")
def embedder(directory: Path) -> Embedder:
    return load_embedder(directory)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / "minilm.json").read_text(encoding="utf-8"))
    return content


def test_what_it_is(directory: Path, embedder: Embedder) -> None:
    assert kind_in(directory) is ModelKind.EMBEDDING
    assert (embedder.dimension, embedder.limits.max_tokens) == (384, 256)
    assert embedder.pooling == Pooling(Mode.MEAN, normalise=True)


def test_the_recorded_vectors(
    directory: Path, embedder: Embedder, recorded: dict[str, Any]
) -> None:
    encoder = InputEncoder.load(directory)
    inputs = [encoder.encode(text, embedder.limits.max_tokens) for text in recorded["texts"]]
    assert [list(one.ids) for one in inputs] == recorded["tokens"]
    vectors = np.array(mx.stack(collect(embedder.embed(inputs), len(inputs))))
    assert np.abs(vectors[:, :16] - recorded["heads"]).max() < 1e-5
    assert np.abs(vectors @ vectors.T - recorded["products"]).max() < 1e-5
    assert recorded["products"][0][1] > 0.5 > 0.2 > recorded["products"][0][2]
