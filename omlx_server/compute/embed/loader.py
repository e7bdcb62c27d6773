"""Loads an embedder or a cross-encoder from a model directory. Mlx thread.

BertModel, RobertaModel, XLMRobertaModel (and …ForMaskedLM with a pooling)   Embedder
Qwen3ForCausalLM, Qwen3Model                                                 Embedder
Bert-, Roberta-, XLMRobertaForSequenceClassification, one label              CrossEncoder
"""

from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx_server.compute.embed.batch import Backbone
from omlx_server.compute.embed.bert import BertRanker, Encoder, RobertaRanker
from omlx_server.compute.embed.body import BackboneEncoder, Head, PassSize
from omlx_server.compute.embed.config import EncoderConfig
from omlx_server.compute.embed.embedder import (
    CrossEncoder,
    Embedder,
    InputLimits,
    pooled,
    relevance,
)
from omlx_server.compute.embed.files import max_tokens_in, modules_in, read_object
from omlx_server.compute.embed.pooling import Mode, Pooling, read_pooling
from omlx_server.compute.embed.probe import planning
from omlx_server.compute.embed.qwen3 import Qwen3, make_body
from omlx_server.compute.kv import dispatch
from omlx_server.compute.model.loader import weight_bytes
from omlx_server.compute.weights.files import lazy_weights
from omlx_server.compute.weights.filling import filling
from omlx_server.core.model_files.kind import ModelKind, architecture_of, kind_of
from omlx_server.core.work import Work as Slices
from omlx_server.errors import ModelUnavailable

# Prefixes of the backbone's weights in files of a model with a head.
_PREFIXES = ("bert.", "roberta.", "model.")
# TensorFlow's names, which old conversions kept, to ours.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def loading_embedder(directory: Path) -> Slices[Embedder]:
    """Load an embedder, in slices. Raises ModelUnavailable."""
    dispatch.install()
    config = read_object(directory / "config.json")
    if architecture_of(config).startswith("Qwen3"):
        return (yield from _qwen3(directory, config))
    _expect(ModelKind.EMBEDDING, directory, config)
    sizes = EncoderConfig.read(config)
    pooling = read_pooling(directory, Pooling(Mode.MEAN, normalise=True))
    encoder, limits = Encoder(sizes), _limits(directory, sizes)
    yield from filling(encoder, read_weights(directory), directory)
    pace, nbytes = PassSize.of(sizes.layers, sizes.hidden), weight_bytes(encoder)
    body = yield from _body(encoder, pooled(pooling), limits)
    return Embedder(body, pooling, limits, sizes.hidden, pace, nbytes)


def loading_cross_encoder(directory: Path) -> Slices[CrossEncoder]:
    """Load a cross-encoder, in slices. Raises ModelUnavailable."""
    dispatch.install()
    config = read_object(directory / "config.json")
    _expect(ModelKind.RERANK, directory, config)
    sizes = EncoderConfig.read(config)
    is_bert = architecture_of(config).startswith("Bert")
    model = BertRanker(sizes) if is_bert else RobertaRanker(sizes)
    head, limits = relevance(model), _limits(directory, sizes)
    yield from filling(model, read_weights(directory), directory)
    pace, nbytes = PassSize.of(sizes.layers, sizes.hidden), weight_bytes(model)
    return CrossEncoder((yield from _body(model, head, limits)), head, limits, pace, nbytes)


def _qwen3(directory: Path, config: dict[str, Any]) -> Slices[Embedder]:
    weights = read_weights(directory)
    pooling = read_pooling(directory, Pooling(Mode.LAST, normalise=True))
    body = make_body(config, weights)
    yield from filling(body, weights, directory)
    most = max_tokens_in(directory, int(config["max_position_embeddings"]))
    limits = InputLimits(int(config["vocab_size"]), most, pad_id=0)
    hidden = int(config["hidden_size"])
    pace, nbytes = PassSize.of(int(config["num_hidden_layers"]), hidden), weight_bytes(body)
    planned = yield from _body(Qwen3(body), pooled(pooling), limits)
    return Embedder(planned, pooling, limits, hidden, pace, nbytes)


def _body(backbone: Backbone, head: Head, limits: InputLimits) -> Slices[BackboneEncoder]:
    plan = yield from planning(backbone, head, limits.pad_id, limits.max_tokens)
    return BackboneEncoder(backbone, limits.pad_id, plan)


def _limits(directory: Path, sizes: EncoderConfig) -> InputLimits:
    return InputLimits(sizes.vocab, max_tokens_in(directory, sizes.max_tokens), sizes.pad_id)


def _expect(kind: ModelKind, directory: Path, config: dict[str, Any]) -> None:
    modules = [module.kind for module in modules_in(directory)]
    if kind_of(config, modules) is not kind:
        name = architecture_of(config) or "a model without a named architecture"
        raise ModelUnavailable(
            f"{directory} holds {name}, which is not known as a model for {kind.value}",
            hint="BERT, RoBERTa and XLM-R are; for embeddings also Qwen3.",
        )


def read_weights(directory: Path) -> dict[str, mx.array]:
    """Return lazy weights by our modules' names. Raises ModelUnavailable."""
    weights = {_plain(name): array for name, array in lazy_weights(directory).items()}
    if not weights:
        raise ModelUnavailable(f"{directory} has no model*.safetensors")
    return weights


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name
