"""Families know llama.cpp's own names of tensors, and refuse what they do not know by name."""

import pytest
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

from omlx_server.core.gguf.families import FAMILIES, config_of
from omlx_server.core.gguf.head import TYPES, GgufHead, TensorPlace

# Factors are read apart or refused; the others are in no file of today.
ELSEWHERE = {"rope_freqs", "rope_factors_long", "rope_factors_short", "blk.0.attn_rot_embd"}
# Mixtures of this name (Mixtral) are refused.
OF_MIXTURES = {f"blk.0.ffn_{part}" for part in ("gate_exps", "up_exps", "down_exps", "gate_inp")}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_each_tensor_of_llama_cpp_has_a_name(architecture: str) -> None:
    family = FAMILIES[architecture]
    [arch] = [key for key, name in MODEL_ARCH_NAMES.items() if name == architecture]
    stems = {TENSOR_NAMES[tensor].format(bid=0) for tensor in MODEL_TENSORS[arch]} - ELSEWHERE
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
    assert not config["tie_word_embeddings"] and "rope_scaling" not in config


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
        config_of(head_of(), factors)
    base, turns = 500000.0, 8192 / 6.283185307179586
    right = []
    for i in range(32):
        smooth = min(1.0, max(0.0, (turns / base ** (i / 32) - 1) / 3))
        right.append(1 / ((1 - smooth) / 8 + smooth))
    config = config_of(head_of(**{"rope.freq_base": base}), right)
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
