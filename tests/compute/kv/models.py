"""Tiny models whose heads are wide enough to be quantised in groups of 32."""

from typing import Any

from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.quantise import use_scheme
from tests.tiny_models import CONFIGS, load_tiny

HEAD_DIM = 32

# What keeps a model from quantised caches, in words of the refusal.
REFUSED = {
    "mamba2": "no layer of it attends to everything",
    "deepseek_v3": "reads keys and values by itself",
    "deepseek_v32": "reads keys and values by itself",
}
ACCEPTED = tuple(architecture for architecture in CONFIGS if architecture not in REFUSED)


def wide(architecture: str) -> LoadedModel:
    """The tiny model with a head dim of 32 in every layer. A new one at each call."""
    config = CONFIGS[architecture]
    changes: dict[str, Any]
    if "text_config" in config:
        changes = {"text_config": {**config["text_config"], "head_dim": HEAD_DIM}}
    elif architecture == "mamba2" or "deepseek" in architecture:
        changes = {}
    elif "head_dim" in config:
        changes = {"head_dim": HEAD_DIM}
    else:  # it follows from these
        changes = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return load_tiny(architecture, **changes)


def quantised(architecture: str, scheme: Scheme) -> LoadedModel:
    loaded = wide(architecture)
    use_scheme(loaded.model, scheme)
    return loaded
