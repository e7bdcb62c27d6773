"""The purpose of a model, by its own files. Pure."""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

ENCODERS = ("Bert", "Roberta", "XLMRoberta")
# The architecture by model_type, for a config.json without `architectures`.
_ARCHITECTURES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "qwen3": "Qwen3ForCausalLM",
}
# Parts of the model_type of models that generate no text.
_NOT_GENERATING = ("bert", "mpnet", "electra", "clip", "vit", "wav2vec", "hubert", "whisper")
# Architectures of chat models, embedders and rerankers alike.
_QWEN3 = ("Qwen3ForCausalLM", "Qwen3Model")
_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
SENTENCE_CONFIG = "sentence_bert_config.json"


class ModelKind(Enum):
    CHAT = "chat"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    UNKNOWN = "unknown"


def kind_of(config: Mapping[str, Any], modules: Collection[str] = (), name: str = "") -> ModelKind:
    """Decide by config.json, the classes in modules.json and, for a Qwen3, its name."""
    architecture = architecture_of(config)
    family, head = _split_architecture(architecture)
    if architecture in _QWEN3:
        return _kind_of_qwen3(architecture, modules, name.lower())
    if family in ENCODERS:
        return _kind_of_encoder(head, config, modules)
    return ModelKind.CHAT if _generates_text(architecture, config, modules) else ModelKind.UNKNOWN


def architecture_of(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    return named if isinstance(named, str) and named else _architecture_by_type(config)


def count_labels(config: Mapping[str, Any]) -> int:
    labels = config.get("id2label")
    count = config.get("num_labels", len(labels) if isinstance(labels, Mapping) else 2)
    return count if isinstance(count, int) else 2


def _architecture_by_type(config: Mapping[str, Any]) -> str:
    architecture = _ARCHITECTURES.get(str(config.get("model_type", "")), "")
    if architecture in ENCODERS:
        is_reranker = ("num_labels" in config or "id2label" in config) and count_labels(config) == 1
        return architecture + ("ForSequenceClassification" if is_reranker else "Model")
    return architecture


def _generates_text(architecture: str, config: Mapping[str, Any], modules: Collection[str]) -> bool:
    if config.get("is_encoder_decoder") is True or "Pooling" in modules:
        return False
    if architecture:
        return architecture.endswith(_GENERATES)
    model_type = str(config.get("model_type", "")).lower()
    return not any(part in model_type for part in _NOT_GENERATING)


def _split_architecture(architecture: str) -> tuple[str, str]:
    for head in ("ForSequenceClassification", "ForMaskedLM", "Model"):
        if architecture.endswith(head):
            return architecture.removesuffix(head), head
    return architecture, ""


def _kind_of_encoder(head: str, config: Mapping[str, Any], modules: Collection[str]) -> ModelKind:
    if "auto_map" in config:
        # The model's own code gives its weights other names and meanings.
        return ModelKind.UNKNOWN
    if head == "ForSequenceClassification":
        # With more labels it is a classifier without a relevance.
        return ModelKind.RERANK if count_labels(config) == 1 else ModelKind.UNKNOWN
    embeds = head == "Model" or (head == "ForMaskedLM" and "Pooling" in modules)
    return ModelKind.EMBEDDING if embeds else ModelKind.UNKNOWN


def _kind_of_qwen3(architecture: str, modules: Collection[str], name: str) -> ModelKind:
    if "LogitScore" in modules or "reranker" in name:
        return ModelKind.RERANK
    if "Pooling" in modules or "embedding" in name or architecture == "Qwen3Model":
        return ModelKind.EMBEDDING
    return ModelKind.CHAT


def first_position(config: Mapping[str, Any]) -> int:
    """Return the first token's position: RoBERTa's family counts from after its padding id."""
    if "Roberta" not in architecture_of(config):
        return 0
    pad_id = config.get("pad_token_id")
    return pad_id + 1 if isinstance(pad_id, int) and pad_id >= 0 else 1


def trained_length(sentence_config: Mapping[str, Any], most: int) -> int:
    length = sentence_config.get("max_seq_length")
    if isinstance(length, int) and not isinstance(length, bool) and length > 0:
        return min(most, length)
    return most
