"""Encoders loaded, and their work done, without a pause."""

from pathlib import Path

import mlx.core as mx

from omlx_server.compute.embed.batch import BatchWork
from omlx_server.compute.embed.embedder import CrossEncoder, Embedder
from omlx_server.compute.embed.loader import loading_cross_encoder, loading_embedder
from omlx_server.core.work import finish


def load_embedder(directory: Path) -> Embedder:
    return finish(loading_embedder(directory))


def load_cross_encoder(directory: Path) -> CrossEncoder:
    return finish(loading_cross_encoder(directory))


def collect(work: BatchWork, count: int) -> list[mx.array]:
    """Do all work without a pause, and return one array per input."""
    values: dict[int, mx.array] = {}
    for part in work:
        if part is not None:
            values.update(zip(part.indices, part.values, strict=True))
    return [values[i] for i in range(count)]
