"""What a model is for, from what its files say."""

from typing import Any

import pytest

from omlx_server.core.model_files.kind import ModelKind, count_labels, kind_of

POOLING = ["Transformer", "Pooling", "Normalize"]


def config(architecture: str, **more: Any) -> dict[str, Any]:
    return {"architectures": [architecture], **more}


@pytest.mark.parametrize("family", ["Bert", "Roberta", "XLMRoberta"])
def test_encoders(family: str) -> None:
    sequence, masked = f"{family}ForSequenceClassification", f"{family}ForMaskedLM"
    assert kind_of(config(f"{family}Model")) is ModelKind.EMBEDDING
    assert kind_of(config(sequence, num_labels=1)) is ModelKind.RERANK
    assert kind_of(config(sequence, id2label={"0": "LABEL_0"})) is ModelKind.RERANK
    assert kind_of(config(sequence)) is ModelKind.UNKNOWN
    assert kind_of(config(sequence, num_labels=3)) is ModelKind.UNKNOWN
    assert kind_of(config(masked)) is ModelKind.UNKNOWN
    assert kind_of(config(masked), POOLING) is ModelKind.EMBEDDING


def test_a_qwen3_is_what_its_modules_or_else_its_name_say() -> None:
    causal = config("Qwen3ForCausalLM")
    assert kind_of(causal) is kind_of(causal, name="Qwen3-0.6B") is ModelKind.CHAT
    assert kind_of(causal, POOLING) is ModelKind.EMBEDDING
    assert kind_of(causal, ["Transformer", "LogitScore"]) is ModelKind.RERANK
    assert kind_of(causal, name="org/Qwen3-Embedding-0.6B-8bit") is ModelKind.EMBEDDING
    assert kind_of(causal, name="Qwen3-Reranker-0.6B") is ModelKind.RERANK
    assert kind_of(config("Qwen3Model")) is ModelKind.EMBEDDING


def test_everything_else() -> None:
    assert kind_of(config("LlamaForCausalLM"), name="my-embedding") is ModelKind.CHAT
    assert kind_of(config("Gemma3ForConditionalGeneration")) is ModelKind.CHAT
    assert kind_of({}) is kind_of({"architectures": None}) is ModelKind.CHAT
    assert kind_of({"architectures": [3]}) is ModelKind.CHAT
    assert kind_of(config("DistilBertModel")) is ModelKind.UNKNOWN
    assert kind_of(config("BertForTokenClassification")) is ModelKind.UNKNOWN


def test_labels() -> None:
    assert count_labels({}) == count_labels({"num_labels": "x"}) == 2
    assert count_labels({"id2label": {"0": "a", "1": "b", "2": "c"}}) == 3
