"""The encoder of BERT, RoBERTa and XLM-R, and rankers, which add a head for relevance. Attributes
have Hugging Face's names. Mlx thread."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.attention.all_to_all import attend, encoder_shape
from omlx_server.compute.embed.batch import Batch, Forward
from omlx_server.compute.hardware import device
from omlx_server.core.memory.encoder import EncoderShape
from omlx_server.core.model_files.kind import first_position
from omlx_server.errors import ModelUnavailable

# erfc(z) is about 1 / (1 + a1 z + ... + a6 z^6)^16 (Abramowitz and Stegun, 7.1.28). Here z is
# x / sqrt(2), and Phi(-x) half of it.
_ERF = (0.0705230784, 0.0422820123, 0.0092705272, 0.0001520143, 0.0002765672, 0.0000430638)
_COEFFICIENTS = tuple(erf / 2 ** (i / 2) for i, erf in enumerate(_ERF, start=1))


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


def gelu(x: mx.array) -> mx.array:
    if device.is_cpu() and x.dtype == mx.float32:
        return rational_gelu(x)
    return nn.gelu(x)


@partial(mx.compile, shapeless=True)
def rational_gelu(x: mx.array) -> mx.array:
    """Return max(x, 0) - |x| Phi(-|x|), which is GELU of x."""
    a = mx.abs(x)
    sum_ = _COEFFICIENTS[-1] * a  # Horner's scheme
    for coefficient in reversed(_COEFFICIENTS[:-1]):
        sum_ = (sum_ + coefficient) * a
    power_16 = mx.square(mx.square(mx.square(mx.square(sum_ + 1))))
    return mx.maximum(x, 0) - a * (0.5 / power_16)


_ACTIVATIONS = {
    "gelu": gelu,
    "gelu_new": nn.gelu_approx,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "relu": nn.relu,
}


class TypedModule(nn.Module):
    """A module whose constructor has types, which MLX's lacks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]


class BertEmbeddings(TypedModule):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab, config.hidden)
        self.position_embeddings = nn.Embedding(config.positions, config.hidden)
        self.token_type_embeddings = nn.Embedding(config.types, config.hidden)
        self.LayerNorm = nn.LayerNorm(config.hidden, eps=config.eps)
        self._first = config.first_position
        self._last_type = config.types - 1

    def __call__(self, batch: Batch) -> mx.array:
        positions = mx.arange(self._first, self._first + batch.ids.shape[1])
        # XLM-R knows one type only, but its tokenizer gives the second text of a pair type 1.
        types = mx.minimum(batch.types, self._last_type)
        summed = self.word_embeddings(batch.ids) + self.token_type_embeddings(types)
        normed: mx.array = self.LayerNorm(summed + self.position_embeddings(positions))
        return normed


class SelfAttention(TypedModule):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self._heads = config.heads

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        batch, length, hidden = x.shape
        by_head = (batch, length, self._heads, hidden // self._heads)
        q, k, v = (
            project(x).reshape(by_head).transpose(0, 2, 1, 3)
            for project in (self.query, self.key, self.value)
        )
        return attend(q, k, v, mask).transpose(0, 2, 1, 3).reshape(batch, length, hidden)


class Output(TypedModule):
    """The end of a sublayer: a projection, the residual connection and a norm."""

    def __init__(self, width: int, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden)
        self.LayerNorm = nn.LayerNorm(config.hidden, eps=config.eps)

    def __call__(self, x: mx.array, residual: mx.array) -> mx.array:
        normed: mx.array = self.LayerNorm(self.dense(x) + residual)
        return normed


class Dense(TypedModule):
    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width_in, width_out)

    def __call__(self, x: mx.array) -> mx.array:
        return self.dense(x)


class BertLayer(TypedModule):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = TypedModule()
        self.attention.self = SelfAttention(config)
        self.attention.output = Output(config.hidden, config)
        self.intermediate = Dense(config.hidden, config.intermediate)
        self.output = Output(config.intermediate, config)
        self._activation = _ACTIVATIONS[config.activation]

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        attended = self.attention.output(self.attention.self(x, mask), x)
        return self.output(self._activation(self.intermediate(attended)), attended)


class BertEncoder(TypedModule):
    """A `Backbone`. A batch with more tokens than a slice is computed some layers at a time."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.encoder = TypedModule()
        self.encoder.layer = [BertLayer(config) for _ in range(config.layers)]
        self._config = config

    def shallow(self, layers: int) -> "BertEncoder":
        """Return this model with its first layers only, for probes."""
        model = copy(self)
        model.encoder = copy(self.encoder)
        model.encoder.layer = self.encoder.layer[:layers]
        return model

    def shape(self, width: int) -> EncoderShape:
        config, layers = self._config, len(self.encoder.layer)
        return encoder_shape(layers, config.hidden, config.intermediate, config.heads, width)

    def run(self, batch: Batch, slice_tokens: int) -> Forward:
        hidden = self.embeddings(batch)
        mask = _attention_mask(batch, hidden.dtype)
        layers = self.encoder.layer
        layers_a_slice = max(1, len(layers) * slice_tokens // batch.size)
        for start in range(0, len(layers), layers_a_slice):
            if start:
                mx.eval(hidden)
                yield
            for layer in layers[start : start + layers_a_slice]:
                hidden = layer(hidden, mask)
        return hidden


class BertRanker(BertEncoder):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.pooler = Dense(config.hidden, config.hidden)
        self.classifier = nn.Linear(config.hidden, 1)

    def logits(self, first: mx.array) -> mx.array:
        """Return logits [B] for the first tokens' hidden states [B, H]."""
        return self.classifier(mx.tanh(self.pooler(first)))[:, 0]


class RobertaHead(Dense):
    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, hidden)
        self.out_proj = nn.Linear(hidden, 1)


class RobertaRanker(BertEncoder):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.classifier = RobertaHead(config.hidden)

    def logits(self, first: mx.array) -> mx.array:
        return self.classifier.out_proj(mx.tanh(self.classifier(first)))[:, 0]


def _attention_mask(batch: Batch, dtype: mx.Dtype) -> mx.array | None:
    if not batch.padded:
        return None
    return mx.where(batch.token_mask(), 0.0, -mx.inf).astype(dtype)[:, None, None, :]
