"""Tiny models in the KV formats that are probed."""

from dataclasses import replace

from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.turboquant import TurboQuant
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.quantise import use_scheme
from tests.tiny_models import load_tiny

AFFINE, TURBOQUANT = Affine(4, 32), TurboQuant(4, 4)
_LAYERS = {"gemma3_text": 4, "qwen3_next": 3}


def load(architecture: str, scheme: Scheme | None = None) -> LoadedModel:
    """The last layer is not the only one with full attention: a prefill never needs its scores."""
    if architecture in _LAYERS and scheme is None:
        return load_tiny(architecture, num_hidden_layers=_LAYERS[architecture])
    if scheme is None:
        return load_tiny(architecture)
    loaded = load_tiny(architecture, head_dim=32)
    use_scheme(loaded.model, scheme)
    return replace(loaded, fingerprint=f"{loaded.fingerprint}-{scheme.name}")
