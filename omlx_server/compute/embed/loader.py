"""Loads an embedder or a cross-encoder from a model directory. Mlx thread.

BertModel, RobertaModel, XLMRobertaModel (and …ForMaskedLM with a pooling)   Embedder
Qwen3ForCausalLM, Qwen3Model                                                 Embedder
Bert-, Roberta-, XLMRobertaForSequenceClassification, one label              CrossEncoder
"""

from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx_server.compute.embed.backbone_encoder import BackboneEncoder, Head, PassSize
from omlx_server.compute.embed.batch import Backbone
from omlx_server.compute.embed.bert import BertEncoder, BertRanker, EncoderConfig, RobertaRanker
from omlx_server.compute.embed.embedder import (
    CrossEncoder,
    Embedder,
    InputLimits,
    pooling_head,
    relevance_head,
)
from omlx_server.compute.embed.files import max_tokens_in, modules_in, read_object
from omlx_server.compute.embed.pooling import Mode, Pooling, read_pooling
from omlx_server.compute.embed.probe import planning
from omlx_server.compute.embed.qwen3 import Qwen3, make_body
from omlx_server.compute.kv import dispatch
from omlx_server.compute.model.loader import weight_bytes
from omlx_server.compute.weights.weights import filling, lazy_weights
from omlx_server.core.model_files.kind import ModelKind, architecture_of, kind_of
from omlx_server.core.work import Work
from omlx_server.errors import ModelUnavailable

# Prefixes of the backbone's weights in files of a model with a head.
_PREFIXES = ("bert.", "roberta.", "model.")
# TensorFlow's names, which old conversions kept, to ours.
_TENSORFLOW_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def loading_embedder(directory: Path) -> Work[Embedder]:
    """Load an embedder, in slices. Raises ModelUnavailable."""
    dispatch.install()
    config = read_object(directory / "config.json")
    if architecture_of(config).startswith("Qwen3"):
        return (yield from _loading_qwen3(directory, config))
    _check_kind(ModelKind.EMBEDDING, directory, config)
    sizes = EncoderConfig.read(config)
    pooling = read_pooling(directory, Pooling(Mode.MEAN, normalise=True))
    backbone, limits = BertEncoder(sizes), _input_limits(directory, sizes)
    yield from filling(backbone, read_weights(directory), directory)
    pass_size, nbytes = PassSize.of(sizes.layers, sizes.hidden), weight_bytes(backbone)
    encoder = yield from _planned_encoder(backbone, pooling_head(pooling), limits)
    return Embedder(encoder, pooling, limits, sizes.hidden, pass_size, nbytes)


def loading_cross_encoder(directory: Path) -> Work[CrossEncoder]:
    """Load a cross-encoder, in slices. Raises ModelUnavailable."""
    dispatch.install()
    config = read_object(directory / "config.json")
    _check_kind(ModelKind.RERANK, directory, config)
    sizes = EncoderConfig.read(config)
    is_bert = architecture_of(config).startswith("Bert")
    model = BertRanker(sizes) if is_bert else RobertaRanker(sizes)
    head, limits = relevance_head(model), _input_limits(directory, sizes)
    yield from filling(model, read_weights(directory), directory)
    pass_size, nbytes = PassSize.of(sizes.layers, sizes.hidden), weight_bytes(model)
    encoder = yield from _planned_encoder(model, head, limits)
    return CrossEncoder(encoder, head, limits, pass_size, nbytes)


def _loading_qwen3(directory: Path, config: dict[str, Any]) -> Work[Embedder]:
    weights = read_weights(directory)
    pooling = read_pooling(directory, Pooling(Mode.LAST, normalise=True))
    body = make_body(config, weights)
    yield from filling(body, weights, directory)
    max_tokens = max_tokens_in(directory, int(config["max_position_embeddings"]))
    limits = InputLimits(int(config["vocab_size"]), max_tokens, pad_id=0)
    hidden = int(config["hidden_size"])
    pass_size = PassSize.of(int(config["num_hidden_layers"]), hidden)
    encoder = yield from _planned_encoder(Qwen3(body), pooling_head(pooling), limits)
    return Embedder(encoder, pooling, limits, hidden, pass_size, weight_bytes(body))


def _planned_encoder(backbone: Backbone, head: Head, limits: InputLimits) -> Work[BackboneEncoder]:
    plan = yield from planning(backbone, head, limits.pad_id, limits.max_tokens)
    return BackboneEncoder(backbone, limits.pad_id, plan)


def _input_limits(directory: Path, sizes: EncoderConfig) -> InputLimits:
    return InputLimits(sizes.vocab, max_tokens_in(directory, sizes.max_tokens), sizes.pad_id)


def _check_kind(kind: ModelKind, directory: Path, config: dict[str, Any]) -> None:
    """Raise ModelUnavailable for a model of another kind."""
    modules = [module.kind for module in modules_in(directory)]
    if kind_of(config, modules) is not kind:
        name = architecture_of(config) or "a model without a named architecture"
        raise ModelUnavailable(
            f"{directory} holds {name}, which is not known as a model for {kind.value}",
            hint="BERT, RoBERTa and XLM-R are; for embeddings also Qwen3.",
        )


def read_weights(directory: Path) -> dict[str, mx.array]:
    """Return lazy weights by our modules' names. Raises ModelUnavailable."""
    weights = {_own_name(name): array for name, array in lazy_weights(directory).items()}
    if not weights:
        raise ModelUnavailable(f"{directory} has no model*.safetensors")
    return weights


def _own_name(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for old, new in _TENSORFLOW_NAMES.items():
        name = name.replace(old, new)
    return name
