"""Encoders loaded at once, as no server does."""

from pathlib import Path

from omlx_server.compute.embed.cross_encoder import CrossEncoder
from omlx_server.compute.embed.embedder import Embedder
from omlx_server.compute.embed.loader import loading_cross_encoder, loading_embedder
from omlx_server.core.work import finish


def load_embedder(directory: Path) -> Embedder:
    return finish(loading_embedder(directory))


def load_cross_encoder(directory: Path) -> CrossEncoder:
    return finish(loading_cross_encoder(directory))
