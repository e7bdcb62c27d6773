"""Tiny random-weight models of real architectures, made by mlx-lm's own classes. float32.

Weights are drawn with a fixed key and scaled up, so that greedy answers vary and near-ties,
which would make an argmax a coin toss, are rare.
"""

import copy
import importlib
from collections import ChainMap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import orjson
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import MODEL_REMAPPING

from omlx_server.compute.kv import dispatch
from omlx_server.compute.model.loader import LoadedModel, read_dims, weight_bytes
from omlx_server.compute.quantise import use_rows_of_own_length
from omlx_server.compute.row_ends import verifies_drafts
from tests.architectures.table import METAL_ONLY, TABLE

VOCAB = 199

_COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
}
_DEEPSEEK = {
    **_COMMON,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "qk_nope_head_dim": 16,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_COMMON, "rope_theta": 10000.0},
    "llama_sliding": {
        **_COMMON,
        "model_type": "llama",
        "num_hidden_layers": 3,
        "rope_theta": 10000.0,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "qwen3": {**_COMMON, "head_dim": 16, "rope_theta": 10000.0, "tie_word_embeddings": True},
    "gemma3_text": {
        **_COMMON,
        "num_hidden_layers": 3,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 16,
        "sliding_window_pattern": 3,
    },
    "gpt_oss": {
        **_COMMON,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "rope_theta": 10000,
        "rope_scaling": None,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "qwen3_next": {
        **_COMMON,
        "num_hidden_layers": 2,
        "head_dim": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
        "norm_topk_prob": True,
    },
    "mamba2": {
        "num_heads": 8,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 16,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": [0.001, 10.0],
        "time_step_rank": "auto",
    },
    "deepseek_v3": {
        **_DEEPSEEK,
    },
    "deepseek_v32": {
        **_DEEPSEEK,
        "index_head_dim": 16,
        "index_n_heads": 2,
        "index_topk": 32,
    },
    "gemma3n": {
        "text_config": {
            **_COMMON,
            "model_type": "gemma3n_text",
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "head_dim": 16,
            "vocab_size_per_layer_input": VOCAB,
            "sliding_window": 16,
            "rope_local_base_freq": 10000.0,
            "rope_theta": 10000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
            "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        },
    },
    "gemma4_text": {
        **_COMMON,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 16,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "tie_word_embeddings": False,
    },
    "qwen3_5": {
        **_COMMON,
        "head_dim": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
    },
    "lfm2": {
        **_COMMON,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": 96,
        "layer_types": ["conv", "full_attention"],
    },
    "nemotron_h": {
        **_COMMON,
        "num_hidden_layers": 3,
        "head_dim": 16,
        "attention_bias": False,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "-", "*"],
    },
    "granitemoehybrid": {
        **_COMMON,
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.25,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_proj_bias": False,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_conv_bias": True,
    },
    "falcon_h1": {
        **_COMMON,
        "head_dim": 16,
        "mamba_d_head": 16,
        "mamba_d_ssm": 128,
        "mamba_d_state": 16,
        "mamba_n_heads": 8,
        "rope_theta": 10000.0,
        "lm_head_multiplier": 1.0,
        "embedding_multiplier": 1.0,
    },
    "llama4": {
        "text_config": {
            **_COMMON,
            "model_type": "llama4_text",
            "num_hidden_layers": 4,  # the fourth attends to everything
            "attention_bias": False,
            "attention_chunk_size": 16,
            "head_dim": 16,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 96,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "use_qk_norm": True,
        },
    },
}


# Parameters of a recurrent layer that say how fast it forgets: the classes start with a few tokens.
_DECAYS = ("recurrent_param", "w_lora.lora.2.bias")

# Their classes bring the rows of this layer to length one whenever they load.
_UNIT_HEADS = {"baichuan_m1"}


def make_model(architecture: str, **changes: Any) -> tuple[nn.Module, dict[str, Any]]:
    """A model of this architecture with fixed random weights, and its config."""
    mx.random.seed(0)  # some classes draw small parameters themselves
    # Some classes complete the config in place.
    config = copy.deepcopy({**_config(architecture), **changes})
    module = importlib.import_module(f"mlx_lm.models.{_module(config['model_type'])}")
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = dict(_weights(model))
    if config["model_type"] in _UNIT_HEADS:
        weights["lm_head.weight"] /= mx.linalg.norm(
            weights["lm_head.weight"], axis=-1, keepdims=True
        )
    model.update(tree_unflatten(list(weights.items())))
    model.eval()
    mx.eval(model.parameters())
    return model, config


def _module(model_type: str) -> str:
    """Some model types are served by the class of another."""
    return str(MODEL_REMAPPING.get(model_type, model_type))


def _config(architecture: str) -> dict[str, Any]:
    """Out of the table above, or out of the one of all that mlx-lm has."""
    config = ChainMap(CONFIGS, TABLE, METAL_ONLY)[architecture]
    return {"model_type": architecture.partition("+")[0], **config}


def load_tiny(architecture: str, **changes: Any) -> LoadedModel:
    """The same as a loaded model, ready for a runner."""
    dispatch.install()
    model, config = make_model(architecture, **changes)
    use_rows_of_own_length(model)
    dims = read_dims(model, config)
    nbytes, verifies = weight_bytes(model), verifies_drafts(model)
    return LoadedModel(model, dims, f"tiny-{architecture}", nbytes, verifies)


def save_tiny(directory: Path, architecture: str, **changes: Any) -> None:
    """The same as an MLX-layout directory (without a tokenizer)."""
    model, config = make_model(architecture, **changes)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_bytes(orjson.dumps(config))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})


def _weights(model: nn.Module) -> Iterator[tuple[str, mx.array]]:
    for number, (name, array) in enumerate(sorted(dict(tree_flatten(model.parameters())).items())):
        if name.endswith("A_log"):  # slow enough that a state still knows of the first tokens
            yield name, mx.linspace(-4.0, 0.0, array.size).reshape(array.shape)
        elif name.endswith(_DECAYS):
            yield name, mx.linspace(-6.0, -3.0, array.size).reshape(array.shape)
        elif array.ndim >= 2 and mx.issubdtype(array.dtype, mx.floating):
            noise = mx.random.normal(array.shape, key=mx.random.key(number))
            yield name, noise * (1.5 / array.shape[-1] ** 0.5)
        elif mx.issubdtype(array.dtype, mx.floating):
            yield name, array.astype(mx.float32)
