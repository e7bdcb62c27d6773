"""A directory fits its config.json in every weight, or it says what does not fit."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from omlx_server.compute.embed.embedder import Embedder
from omlx_server.compute.embed.qwen3 import make_body
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.errors import ModelUnavailable
from omlx_server.models.description import encoder_length
from omlx_server.models.installed import installed_models
from omlx_server.settings.model_sections import ModelsSettings
from tests.compute.embed import tiny
from tests.compute.embed.loading import collect, load_cross_encoder, load_embedder
from tests.data.embed.seeded import Weights

QUERY = "encoder.layer.1.attention.self.query.weight"


def vectors(embedder: Embedder, case: str) -> np.ndarray:
    inputs = tiny.inputs_of(case)
    return np.array(mx.stack(collect(embedder.embed(inputs), len(inputs))))


def test_what_a_loaded_model_says_of_itself(tmp_path: Path) -> None:
    bert = load_embedder(tiny.save(tmp_path / "bert", "BertModel"))
    assert (bert.dimension, bert.limits.max_tokens, bert.limits.vocab) == (16, 32, 40)
    pooler = 4 * (16 * 16 + 16)
    whole = sum(w.nbytes for w in tiny.weights_of("BertModel").values())
    assert bert.weight_bytes == whole - pooler
    roberta = load_embedder(tiny.save(tmp_path / "roberta", "RobertaModel"))
    assert roberta.limits.max_tokens == 32
    qwen3 = load_embedder(tiny.save(tmp_path / "qwen3", "Qwen3Model"))
    assert (qwen3.dimension, qwen3.limits.max_tokens) == (16, 64)


def test_sentence_transformers_length_is_taken_when_it_is_shorter(tmp_path: Path) -> None:
    tiny.save(tmp_path, "BertModel")
    for text, expected in (("20", 20), ("99", 32), ("null", 32), ('"x"', 32), ("true", 32)):
        (tmp_path / "sentence_bert_config.json").write_text(f'{{"max_seq_length": {text}}}')
        assert load_embedder(tmp_path).limits.max_tokens == expected == encoder_length(tmp_path)


@pytest.mark.parametrize("case", ["BertModel", "RobertaModel", "XLMRobertaModel", "Qwen3Model"])
def test_lists_tell_the_length_that_is_the_limit(case: str, tmp_path: Path) -> None:
    """RoBERTa's positions begin behind its padding, so it reads fewer tokens than it has."""
    limit = load_embedder(tiny.save(tmp_path / "org" / "model", case)).limits.max_tokens
    (model,) = installed_models(ModelsSettings(dirs=(tmp_path,), use_hf_cache=False))
    told = encoder_length(model.path)
    assert told == limit and (
        model.context_length == limit or model.kind is not ModelKind.EMBEDDING
    )


def test_a_length_that_no_file_tells_is_not_guessed(tmp_path: Path) -> None:
    assert encoder_length(tmp_path) is None
    (tmp_path / "config.json").write_text("{}")
    assert encoder_length(tmp_path) is None


def renamed(case: str, rename: Any) -> Weights:
    return {rename(name): array for name, array in tiny.weights_of(case).items()}


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"bert.{name}",
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma"),
        lambda name: name.replace("LayerNorm.bias", "LayerNorm.beta"),
    ],
    ids=["prefix", "gamma", "beta"],
)
def test_other_names_of_the_same_weights(tmp_path: Path, rename: Any) -> None:
    plain = load_embedder(tiny.save(tmp_path / "plain", "BertModel"))
    other = load_embedder(tiny.save(tmp_path / "b", "BertModel", renamed("BertModel", rename)))
    assert (vectors(plain, "BertModel") == vectors(other, "BertModel")).all()


def test_weights_in_several_files(tmp_path: Path) -> None:
    plain = load_embedder(tiny.save(tmp_path / "plain", "BertModel"))
    weights = list(tiny.weights_of("BertModel").items())
    tiny.save(tmp_path / "b", "BertModel", dict(weights[:9]))
    (tmp_path / "b" / "model.safetensors").rename(
        tmp_path / "b" / "model-00001-of-00002.safetensors"
    )
    tiny.save(tmp_path / "b", "BertModel", dict(weights[9:]))
    (tmp_path / "b" / "model.safetensors").rename(
        tmp_path / "b" / "model-00002-of-00002.safetensors"
    )
    assert (
        vectors(load_embedder(tmp_path / "b"), "BertModel") == vectors(plain, "BertModel")
    ).all()


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    weights = tiny.weights_of("BertModel")
    del weights[QUERY]
    with pytest.raises(ModelUnavailable, match=f"no weights called {QUERY}$"):
        load_embedder(tiny.save(tmp_path, "BertModel", weights))
    kept = {name: array for name, array in weights.items() if "layer.0" not in name}
    with pytest.raises(ModelUnavailable, match=r"and 13 more$"):
        load_embedder(tiny.save(tmp_path, "BertModel", kept))


def test_a_weight_of_another_shape_is_named(tmp_path: Path) -> None:
    weights = tiny.weights_of("BertModel")
    weights[QUERY] = weights[QUERY][:, :8].copy()
    with pytest.raises(ModelUnavailable, match=r"query\.weight \(16, 8\) instead of \(16, 16\)"):
        load_embedder(tiny.save(tmp_path, "BertModel", weights))


def test_a_weight_that_is_not_known_is_named(tmp_path: Path) -> None:
    weights = tiny.weights_of("BertModel")
    weights["encoder.layer.0.adapter.weight"] = np.zeros((2, 2), np.float32)
    with pytest.raises(
        ModelUnavailable, match=r"does not know: encoder\.layer\.0\.adapter\.weight"
    ):
        load_embedder(tiny.save(tmp_path, "BertModel", weights))


def test_a_head_that_is_not_there(tmp_path: Path) -> None:
    case = "XLMRobertaForSequenceClassification"
    weights = {name: w for name, w in tiny.weights_of(case).items() if "out_proj" not in name}
    with pytest.raises(ModelUnavailable, match=r"classifier\.out_proj\.bias, classifier\.out_proj"):
        load_cross_encoder(tiny.save(tmp_path, case, weights))


def test_damaged_or_missing_files(tmp_path: Path) -> None:
    tiny.save(tmp_path, "BertModel")
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelUnavailable, match="can't read"):
        load_embedder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="has no model"):
        load_embedder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelUnavailable, match="no JSON object"):
        load_embedder(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelUnavailable, match="can't be read"):
        load_embedder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "swish"}, "swish"),
        ({"is_decoder": True}, "decoder"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_attention_heads": 3}, "do not fit"),
        ({"num_attention_heads": 0}, "do not fit"),
        ({"type_vocab_size": 0}, "do not fit"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"architectures": [], "model_type": "other"}, "without a named architecture"),
    ],
)
def test_what_is_not_computed_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelUnavailable, match=message):
        load_embedder(tiny.save(tmp_path, "BertModel", **changes))


def test_each_loader_wants_its_own_kind(tmp_path: Path) -> None:
    tiny.save(tmp_path / "e", "BertModel")
    tiny.save(tmp_path / "r", "BertForSequenceClassification")
    with pytest.raises(ModelUnavailable, match="rerank"):
        load_cross_encoder(tmp_path / "e")
    with pytest.raises(ModelUnavailable, match="embedding"):
        load_embedder(tmp_path / "r")
    with pytest.raises(ModelUnavailable, match="rerank"):
        load_cross_encoder(tiny.save(tmp_path / "r", "BertForSequenceClassification", num_labels=2))


def test_a_qwen3_without_a_size(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"config\.json"):
        load_embedder(tiny.save(tmp_path, "Qwen3Model", rms_norm_eps=None, rope_theta=None))


def test_a_quantised_qwen3(tmp_path: Path) -> None:
    """As mlx-lm writes it: a format for all, one for a module of its own, norms as they are."""
    wide = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 64}
    formats = {
        "group_size": 32,
        "bits": 8,
        "model.layers.0.mlp.up_proj": {"group_size": 32, "bits": 4},
    }
    config = {**tiny.cases()["Qwen3ForCausalLM"]["config"], **wide}
    float_weights = _qwen3_weights(config)
    weights = dict(float_weights)
    for name in [n for n, w in float_weights.items() if w.ndim == 2]:
        bits = 4 if name == "model.layers.0.mlp.up_proj.weight" else 8
        packed, scales, biases = mx.quantize(weights[name], group_size=32, bits=bits)
        stem = name.removesuffix("weight")
        weights |= {name: packed, f"{stem}scales": scales, f"{stem}biases": biases}
    for directory, content in ((tmp_path / "float", float_weights), (tmp_path / "q", weights)):
        extra = {} if content is float_weights else {"quantization": formats}
        tiny.save(directory, "Qwen3ForCausalLM", None, **wide, **extra)
        mx.save_safetensors(str(directory / "model.safetensors"), content)
    plain = vectors(load_embedder(tmp_path / "float"), "Qwen3ForCausalLM")
    quantised = load_embedder(tmp_path / "q")
    assert quantised.weight_bytes < load_embedder(tmp_path / "float").weight_bytes / 2
    assert ((vectors(quantised, "Qwen3ForCausalLM") * plain).sum(axis=1) > 0.98).all()


def _qwen3_weights(config: dict[str, Any]) -> dict[str, mx.array]:
    parameters: Any = tree_flatten(make_body(config, {}).parameters())
    return {f"model.{name}": array for name, array in parameters}


@pytest.mark.parametrize("columns", [0, 3, 100])
def test_scales_that_fit_no_weight_are_refused(tmp_path: Path, columns: int) -> None:
    weights = tiny.weights_of("Qwen3Model")
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    rows = len(weights[name])
    weights[name.replace("weight", "scales")] = np.ones((rows, columns), np.float16)
    formats = {"quantization": {"group_size": 32, "bits": 4}}
    with pytest.raises(ModelUnavailable, match="q_proj"):
        load_embedder(tiny.save(tmp_path, "Qwen3Model", weights, **formats))
