"""What a model is for, as its own files tell. Pure; any thread."""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

ENCODERS = ("Bert", "Roberta", "XLMRoberta")
# The two ways in which a Qwen3 is more than a chat model; its config.json does not tell.
_QWEN3 = ("Qwen3ForCausalLM", "Qwen3Model")
_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


class Kind(Enum):
    CHAT = "chat"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    UNKNOWN = "unknown"


def kind_of(config: Mapping[str, Any], modules: Collection[str] = (), name: str = "") -> Kind:
    """`config` is config.json, `modules` the class names in sentence-transformers' modules.json,
    if there is one; `name` what the model is called, which counts where the files are silent."""
    architecture = architecture_of(config)
    family, head = _split(architecture)
    if architecture in _QWEN3:
        return _kind_of_qwen3(architecture, modules, name.lower())
    if family in ENCODERS:
        return _kind_of_encoder(head, config, modules)
    if not architecture or architecture.endswith(_GENERATES):
        return Kind.CHAT
    return Kind.UNKNOWN


def architecture_of(config: Mapping[str, Any]) -> str:
    """The first architecture that config.json names, or an empty text."""
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else ""
    return first if isinstance(first, str) else ""


def labels_of(config: Mapping[str, Any]) -> int:
    """How many numbers a classifier gives. transformers' default is two."""
    named = config.get("id2label")
    count = config.get("num_labels", len(named) if isinstance(named, Mapping) else 2)
    return count if isinstance(count, int) else 2


def _split(architecture: str) -> tuple[str, str]:
    """XLMRobertaForSequenceClassification: XLMRoberta, ForSequenceClassification."""
    for head in ("ForSequenceClassification", "ForMaskedLM", "Model"):
        if architecture.endswith(head):
            return architecture.removesuffix(head), head
    return architecture, ""


def _kind_of_encoder(head: str, config: Mapping[str, Any], modules: Collection[str]) -> Kind:
    if head == "ForSequenceClassification":
        # With more labels it is a classifier, and none of its numbers is a relevance.
        return Kind.RERANK if labels_of(config) == 1 else Kind.UNKNOWN
    embeds = head == "Model" or (head == "ForMaskedLM" and "Pooling" in modules)
    return Kind.EMBEDDING if embeds else Kind.UNKNOWN


def _kind_of_qwen3(architecture: str, modules: Collection[str], name: str) -> Kind:
    if "LogitScore" in modules or "reranker" in name:
        return Kind.RERANK
    if "Pooling" in modules or "embedding" in name or architecture == "Qwen3Model":
        return Kind.EMBEDDING
    return Kind.CHAT
