"""The prefill chunk sizes of a model in words."""

from collections.abc import Mapping
from typing import Any

from omlx_server.core.chunk_sizes import ChunkSizes


def in_chunks(said: Mapping[str, Any]) -> str:
    """Return the chunk sizes in a server's description of a model; empty where it did not tell."""
    beside, alone = said.get("chunk_tokens"), said.get("chunk_tokens_alone")
    if not (isinstance(beside, int) and isinstance(alone, int)):
        return ""
    return str(ChunkSizes(beside, alone))
