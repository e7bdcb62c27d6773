"""Families know llama.cpp's own names of tensors, and refuse what they do not know by name."""

from dataclasses import fields

import pytest
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES
from mlx_lm.utils import _get_classes

from omlx_server.core.gguf.families import FAMILIES, config_of, is_used
from omlx_server.core.gguf.head import TYPES, GgufHead, TensorPlace
from tests.gguf_families import ARCHITECTURES

# Factors are read apart, guesses of more tokens are left out; the others are in no file of today.
ELSEWHERE = ("rope_freqs", "rope_factors", "attn_rot_embd", "nextn.", "dense_2")
# Mixtures of these names are of other families, or refused.
REFUSED = {
    "llama": ("_exps", "gate_inp"),
    "minicpm": ("_exps", "gate_inp"),
    "mistral3": ("_exps", "gate_inp"),
    "qwen3next": ("ssm_in",),
    "granitemoe": ("_shexp",),
}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_each_tensor_of_llama_cpp_has_a_name(architecture: str) -> None:
    family, name = FAMILIES[architecture], ARCHITECTURES.get(architecture, architecture)
    [arch] = [key for key, arch_name in MODEL_ARCH_NAMES.items() if arch_name == name]
    without = (*ELSEWHERE, *REFUSED.get(architecture, ()))
    stems = {TENSOR_NAMES[tensor].format(bid=0) for tensor in MODEL_TENSORS[arch]}
    stems = {stem for stem in stems if not any(part in stem for part in without)}
    names = {family.name_of(f"{stem}.weight") for stem in stems}
    assert len(names) == len(stems)


def test_a_tensor_that_is_not_known_is_refused() -> None:
    for name in ("blk.0.nothing.weight", "blk.x.attn_q.weight", "v.blk.0.attn_q.weight", "a", ""):
        with pytest.raises(ValueError, match="is not known"):
            FAMILIES["llama"].name_of(name)


FIELDS = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.context_length": 4096,
    "tokenizer.ggml.tokens": ["a", "b"],
}


def head_of(**changes: object) -> GgufHead:
    fields = {**FIELDS, **{f"llama.{key}": value for key, value in changes.items()}}
    return GgufHead(fields, (TensorPlace("output.weight", (2, 64), TYPES[0], 0, 512),))


def test_the_config_is_mlx_lms() -> None:
    config = config_of(head_of())
    assert config["rms_norm_eps"] == 1e-05
    assert (config["head_dim"], config["num_key_value_heads"]) == (16, 4)
    assert not config["tie_word_embeddings"] and config["rope_scaling"] is None


@pytest.mark.parametrize("name", [name for name in FIELDS if name.startswith("llama.")])
def test_a_field_that_lacks_is_named(name: str) -> None:
    fields = {key: value for key, value in FIELDS.items() if key != name}
    with pytest.raises(ValueError, match=f"it has no {name}"):
        config_of(GgufHead(fields, ()))


@pytest.mark.parametrize("name", ["block_count", "embedding_length", "context_length"])
@pytest.mark.parametrize("value", [0, -1, "many"])
def test_a_size_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match="is"):
        config_of(head_of(**{name: value}))


def test_llama_3s_scaling_is_known_by_its_factors() -> None:
    factors = [1.0] * 20 + [8.0] * 12
    with pytest.raises(ValueError, match="not the scaling of Llama 3"):
        config_of(head_of(), {"rope_freqs.weight": factors})
    base, turns = 500000.0, 8192 / 6.283185307179586
    right = []
    for i in range(32):
        smooth = min(1.0, max(0.0, (turns / base ** (i / 32) - 1) / 3))
        right.append(1 / ((1 - smooth) / 8 + smooth))
    config = config_of(head_of(**{"rope.freq_base": base}), {"rope_freqs.weight": right})
    assert config["rope_scaling"]["rope_type"] == "llama3"
    assert config["rope_scaling"]["factor"] == 8.0


@pytest.mark.parametrize(("kind", "is_known"), [("linear", True), ("yarn", True), ("su", False)])
def test_ropes_scaling_is_told_or_refused(kind: str, is_known: bool) -> None:
    changes = {"rope.scaling.type": kind, "rope.scaling.factor": 4.0}
    changes |= {"rope.scaling.original_context_length": 1024}
    if is_known:
        assert config_of(head_of(**changes))["rope_scaling"]["factor"] == 4.0
    else:
        with pytest.raises(ValueError, match="its rope scaling is 'su'"):
            config_of(head_of(**changes))


def test_a_family_that_shares_its_name_is_known_by_its_experts() -> None:
    assert config_of(head_of(expert_count=8, expert_used_count=2))["model_type"] == "mixtral"
    assert config_of(head_of(expert_count=0))["model_type"] == "llama"


def test_a_window_of_all_layers_bounds_the_context() -> None:
    config = config_of(head_of(**{"attention.sliding_window": 1024}))
    assert config["max_position_embeddings"] == 1024


def test_a_list_of_sizes_gives_the_largest() -> None:
    config = config_of(head_of(**{"attention.head_count_kv": [0, 2, 0]}))
    assert config["num_key_value_heads"] == 2
    with pytest.raises(ValueError, match=r"its llama.attention.head_count_kv is \[\]"):
        config_of(head_of(**{"attention.head_count_kv": []}))


def test_layers_that_guess_more_tokens_are_left_out() -> None:
    config = config_of(head_of(nextn_predict_layers=1))
    assert config["num_hidden_layers"] == 1
    names = ("blk.0.attn_q.weight", "blk.1.attn_q.weight", "output.weight", "rope_freqs.weight")
    assert [is_used(name, config) for name in names] == [True, False, True, False]


def long_head(**changes: object) -> GgufHead:
    fields = {key.replace("llama", "phi3"): value for key, value in FIELDS.items()}
    fields |= {"general.architecture": "phi3", "phi3.rope.scaling.original_context_length": 1024}
    return GgufHead({**fields, **{f"phi3.{key}": value for key, value in changes.items()}}, ())


def test_long_texts_have_factors_of_their_own() -> None:
    factors = {f"rope_factors_{part}.weight": [1.0, 2.0] for part in ("long", "short")}
    config = config_of(long_head(**{"rope.scaling.attn_factor": (1 + 0.2) ** 0.5}), factors)
    assert config["rope_scaling"]["long_factor"] == [1.0, 2.0]
    assert config["original_max_position_embeddings"] == 1024
    assert config_of(long_head())["rope_scaling"] is None
    with pytest.raises(ValueError, match="attn_factor is not that of its context"):
        config_of(long_head(**{"rope.scaling.attn_factor": 2.0}), factors)


def test_attention_with_a_temperature_is_refused() -> None:
    fields = {key.replace("llama", "deepseek2"): value for key, value in FIELDS.items()}
    fields |= {"general.architecture": "deepseek2", "deepseek2.attention.temperature_scale": 0.1}
    with pytest.raises(ValueError, match="has a temperature"):
        config_of(GgufHead(fields, ()))


def test_scaled_positions_are_refused_where_the_class_has_none() -> None:
    without = {
        name
        for name, family in FAMILIES.items()
        if "rope_scaling" not in fields_of_arguments(family.model_type)
    }
    elsewhere = {"mistral3", "qwen35", "qwen35moe", "qwen3next"}  # as rope_parameters
    unused = {"glm4moe", "mixtral", "qwen2moe"}  # their classes take them, and do nothing
    assert {n for n, f in FAMILIES.items() if not f.scales} == without - elsewhere | unused
    changes = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    with pytest.raises(ValueError, match="its positions are scaled"):
        config_of(head_of(**changes, expert_count=8, expert_used_count=2))


def fields_of_arguments(model_type: str) -> set[str]:
    _, arguments = _get_classes({"model_type": model_type})
    return {field.name for field in fields(arguments)}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {"nextn_predict_layers": "x"}),
        (
            "llama",
            {"rope.scaling.type": "linear", "rope.scaling.factor": "x", "context_length": []},
        ),
        ("lfm2", {"attention.head_count_kv": 2, "shortconv.l_cache": 3}),
        ("gemma4", {"attention.sliding_window_pattern": 3, "attention.head_count_kv": 1}),
        ("minicpm", {"logit_scale": 0.0}),
        ("qwen35", {"rope.dimension_sections": 1, "ssm.time_step_rank": 2, "rope.freq_base": []}),
    ],
)
def test_fields_of_other_types_are_refused(architecture: str, changes: dict[str, object]) -> None:
    known = {key.replace("llama", architecture): value for key, value in FIELDS.items()}
    known |= {f"{architecture}.{key}": value for key, value in changes.items()}
    with pytest.raises(ValueError, match=r"its fields are not those|its .+ is \[\]|it has no"):
        config_of(GgufHead({**known, "general.architecture": architecture}, ()))
