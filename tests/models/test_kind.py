"""What the model in a directory is for."""

import json
from pathlib import Path
from typing import Any

import pytest

from omlx_server.core.model_files.kind import ModelKind
from omlx_server.models.kind import kind_in


def test_files_and_the_name_of_the_directory_tell(tmp_path: Path) -> None:
    path = tmp_path / "Qwen3-Embedding-0.6B"
    path.mkdir()
    assert kind_in(path) is ModelKind.UNKNOWN
    (path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    assert kind_in(path) is ModelKind.EMBEDDING
    assert kind_in(path, "abc") is ModelKind.CHAT
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (path / "modules.json").write_text(json.dumps(modules))
    assert kind_in(path, "abc") is ModelKind.EMBEDDING


def test_files_that_can_not_be_read_raise_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert kind_in(tmp_path) is ModelKind.UNKNOWN
    (tmp_path / "config.json").write_bytes(b'{"architectures": ["BertModel"]}')
    (tmp_path / "modules.json").write_bytes(b"\xff[1]")
    assert kind_in(tmp_path) is ModelKind.EMBEDDING


POOLED = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
ST_QWEN = [*POOLED, "sentence_transformers.models.Normalize"]
JINA = {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"}


def config(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    """As transformers writes them; without an architecture where that is empty."""
    named = {"architectures": [architecture]} if architecture else {}
    return {**named, "model_type": model_type, "vocab_size": 100, **more}


MODELS = [
    ("Llama-3.2-1B-4bit", config("LlamaForCausalLM", "llama"), [], ModelKind.CHAT),
    ("Qwen3-0.6B-4bit", config("Qwen3ForCausalLM", "qwen3"), [], ModelKind.CHAT),
    ("Qwen3-Next-80B", config("Qwen3NextForCausalLM", "qwen3_next"), [], ModelKind.CHAT),
    (
        "gemma-3-4b-it",
        config("Gemma3ForConditionalGeneration", "gemma3", text_config={}, vision_config={}),
        [],
        ModelKind.CHAT,
    ),
    (
        "Mistral-7B",
        config("MistralForCausalLM", "mistral", sliding_window=4096),
        [],
        ModelKind.CHAT,
    ),
    ("Mixtral-8x7B", config("MixtralForCausalLM", "mixtral"), [], ModelKind.CHAT),
    (
        "gpt-oss-20b",
        config("GptOssForCausalLM", "gpt_oss", quantization_config={"quant_method": "mxfp4"}),
        [],
        ModelKind.CHAT,
    ),
    (
        "DeepSeek-V3",
        config("DeepseekV3ForCausalLM", "deepseek_v3", auto_map={}),
        [],
        ModelKind.CHAT,
    ),
    ("Phi-3-mini", config("Phi3ForCausalLM", "phi3", auto_map={}), [], ModelKind.CHAT),
    ("gpt2", config("GPT2LMHeadModel", "gpt2"), [], ModelKind.CHAT),
    ("all-MiniLM-L6-v2", config("BertModel", "bert"), POOLED, ModelKind.EMBEDDING),
    ("bge-m3", config("XLMRobertaModel", "xlm-roberta"), POOLED, ModelKind.EMBEDDING),
    (
        "bge-reranker-v2-m3",
        config("XLMRobertaForSequenceClassification", "xlm-roberta", id2label={"0": "LABEL_0"}),
        [],
        ModelKind.RERANK,
    ),
    (
        "twitter-sentiment",
        config("RobertaForSequenceClassification", "roberta", id2label={"0": "a", "1": "b"}),
        [],
        ModelKind.UNKNOWN,
    ),
    ("ModernBERT-base", config("ModernBertForMaskedLM", "modernbert"), [], ModelKind.UNKNOWN),
    ("Qwen3-Embedding-0.6B", config("Qwen3ForCausalLM", "qwen3"), ST_QWEN, ModelKind.EMBEDDING),
    ("Qwen3-Embedding-0.6B-8bit", config("Qwen3ForCausalLM", "qwen3"), [], ModelKind.EMBEDDING),
    ("Qwen3-Reranker-0.6B", config("Qwen3ForCausalLM", "qwen3"), [], ModelKind.RERANK),
    (
        "jina-embeddings-v3",
        config("XLMRobertaModel", "xlm-roberta", auto_map=JINA),
        POOLED,
        ModelKind.UNKNOWN,
    ),
    ("jina-embeddings-v2", config("JinaBertForMaskedLM", "bert"), POOLED, ModelKind.UNKNOWN),
    ("embeddinggemma", config("Gemma3TextModel", "gemma3_text"), POOLED, ModelKind.UNKNOWN),
    ("e5-mistral", config("MistralForCausalLM", "mistral"), POOLED, ModelKind.UNKNOWN),
    (
        "whisper",
        config("WhisperForConditionalGeneration", "whisper", is_encoder_decoder=True),
        [],
        ModelKind.UNKNOWN,
    ),
    # Without `architectures`, as converted models often are.
    ("tiny", config("", "llama"), [], ModelKind.CHAT),
    ("tiny", config("", "qwen3_moe"), [], ModelKind.CHAT),
    ("tiny", config("", "qwen3"), [], ModelKind.CHAT),
    ("Qwen3-Embedding-4bit", config("", "qwen3"), [], ModelKind.EMBEDDING),
    ("tiny", config("", "bert"), [], ModelKind.EMBEDDING),
    ("tiny", config("", "xlm-roberta", num_labels=1), [], ModelKind.RERANK),
    ("tiny", config("", "modernbert"), [], ModelKind.UNKNOWN),
    ("tiny", config("", "clip"), [], ModelKind.UNKNOWN),
]


@pytest.mark.parametrize(("name", "said", "modules", "kind"), MODELS)
def test_models_as_their_makers_publish_them(
    tmp_path: Path, name: str, said: dict[str, Any], modules: list[str], kind: ModelKind
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(said))
    if modules:
        (tmp_path / "modules.json").write_text(json.dumps([{"type": m} for m in modules]))
    assert kind_in(tmp_path, name) is kind
