"""The sizes and options of the BERT family's encoders, from config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omlx_server.core.model_files.encoder_length import first_position
from omlx_server.errors import ModelUnavailable

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes and options of an encoder. `types` is the number of token types. `first_position` is
    pad_id + 1 for RoBERTa and XLM-R, 0 for BERT."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    positions: int
    types: int
    eps: float
    activation: str
    pad_id: int
    first_position: int

    @property
    def max_tokens(self) -> int:
        return self.positions - self.first_position

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "EncoderConfig":
        """Raises ModelUnavailable for missing or inconsistent sizes and unknown variants."""
        _check_variant(config)
        sizes = cls(
            vocab=_int(config, "vocab_size"),
            hidden=_int(config, "hidden_size"),
            layers=_int(config, "num_hidden_layers"),
            heads=_int(config, "num_attention_heads"),
            intermediate=_int(config, "intermediate_size"),
            positions=_int(config, "max_position_embeddings"),
            types=_int(config, "type_vocab_size"),
            eps=float(config.get("layer_norm_eps", 1e-12)),
            activation=str(config.get("hidden_act", "gelu")),
            pad_id=_int(config, "pad_token_id", 0),
            first_position=first_position(config),
        )
        least = min(sizes.layers, sizes.heads, sizes.types, sizes.max_tokens)
        if least < 1 or sizes.hidden % sizes.heads:
            raise ModelUnavailable("config.json: the sizes of the model do not fit together")
        return sizes


def _check_variant(config: Mapping[str, Any]) -> None:
    positions = config.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise ModelUnavailable(f"config.json: positions of the kind {positions!r} are not known")
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise ModelUnavailable(f"config.json: the activation {activation!r} is not known")
    if config.get("is_decoder"):
        raise ModelUnavailable("config.json: a decoder of the BERT family is no encoder")


def _int(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ModelUnavailable(f"config.json: {name} is missing or no number: {value!r}")
    return value
