"""Tiny random vision models: config.json as checkpoints have it, weights, prompts and pixels. The
recording script (tests/data/vision/record.py) and the tests make the same ones, by numpy alone."""

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

VOCAB, IMAGE_ID, START_ID, END_ID = 128, 120, 121, 122
_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
_QWEN_IDS = {
    "image_token_id": IMAGE_ID,
    "video_token_id": 123,
    "vision_start_token_id": START_ID,
    "vision_end_token_id": END_ID,
    "tie_word_embeddings": False,
}
_SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_channels": 3,
    "patch_size": 4,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}
_QWEN3: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "architectures": ["Qwen3VLForConditionalGeneration"],
    **_QWEN_IDS,
    "text_config": {
        **_TEXT,
        "model_type": "qwen3_vl_text",
        "head_dim": 16,
        "num_hidden_layers": 3,
        "attention_bias": False,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [4, 2, 2],
            "rope_type": "default",
        },
    },
    "vision_config": {
        "model_type": "qwen3_vl",
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": 4,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 2],
        "hidden_act": "gelu_pytorch_tanh",
    },
}
_IDEFICS3: dict[str, Any] = {
    "model_type": "idefics3",
    "architectures": ["Idefics3ForConditionalGeneration"],
    "image_token_id": IMAGE_ID,
    "scale_factor": 2,
    "tie_word_embeddings": False,
    "text_config": {
        **_TEXT,
        "model_type": "llama",
        "num_hidden_layers": 2,
        "rope_theta": 10000.0,
        "pad_token_id": 0,
    },
    "vision_config": {**_SIGLIP, "model_type": "idefics3_vision", "image_size": 24},
}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "qwen3_vl": _QWEN3,
    "qwen3_5": {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        **_QWEN_IDS,
        "text_config": {
            **_TEXT,
            "model_type": "qwen3_5_text",
            "head_dim": 32,
            "num_hidden_layers": 4,
            "full_attention_interval": 2,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": [2, 1, 1],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10000.0,
                "rope_type": "default",
            },
        },
        "vision_config": {
            "model_type": "qwen3_5",
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 4,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "out_hidden_size": 64,
            "num_position_embeddings": 36,
            "hidden_act": "gelu_pytorch_tanh",
        },
    },
    "qwen2_5_vl": {
        **_TEXT,
        **_QWEN_IDS,
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "num_hidden_layers": 2,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": 4,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "in_chans": 3,
            "patch_size": 4,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "window_size": 16,
            "fullatt_block_indexes": [1, 3],
            "out_hidden_size": 64,
            "tokens_per_second": 2,
            "hidden_act": "silu",
        },
    },
    "qwen2_vl": {
        **_TEXT,
        **_QWEN_IDS,
        "model_type": "qwen2_vl",
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "num_hidden_layers": 2,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "vision_config": {
            "model_type": "qwen2_vl",
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "mlp_ratio": 2,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 4,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "hidden_act": "quick_gelu",
        },
    },
    "gemma3": {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "image_token_index": IMAGE_ID,
        "boi_token_index": START_ID,
        "eoi_token_index": END_ID,
        "mm_tokens_per_image": 16,
        "vocab_size": VOCAB,
        "tie_word_embeddings": True,
        "text_config": {
            **_TEXT,
            "model_type": "gemma3_text",
            "head_dim": 16,
            "num_hidden_layers": 4,
            "query_pre_attn_scalar": 16,
            "sliding_window": 24,
            "sliding_window_pattern": 2,
            "rope_theta": 10000.0,
            "rope_local_base_freq": 1000.0,
            "tie_word_embeddings": True,
            "hidden_activation": "gelu_pytorch_tanh",
        },
        "vision_config": {
            **_SIGLIP,
            "model_type": "siglip_vision_model",
            "image_size": 32,
            "vision_use_head": False,
        },
    },
    "qwen3_vl_moe": {
        **_QWEN3,
        "model_type": "qwen3_vl_moe",
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "text_config": {
            **_QWEN3["text_config"],
            "model_type": "qwen3_vl_moe_text",
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        },
        "vision_config": {**_QWEN3["vision_config"], "model_type": "qwen3_vl_moe"},
    },
    "idefics3": _IDEFICS3,
    "smolvlm": {
        **_IDEFICS3,
        "model_type": "smolvlm",
        "architectures": ["SmolVLMForConditionalGeneration"],
        "vision_config": {**_IDEFICS3["vision_config"], "model_type": "smolvlm_vision"},
    },
}

_GEMMA_NORMS = ("language_model.model.", "multi_modal_projector.")

# Heights and widths in patches of the images of each prompt, in order.
GRIDS: Sequence[Sequence[tuple[int, int]]] = (((4, 6),), ((6, 4), (10, 6)))


def weight(name: str, shape: Sequence[int]) -> Floats:
    """The random weight of this name. Streams of RandomState are the same in all versions."""
    drawn = np.random.RandomState(crc32(name.encode())).standard_normal(tuple(shape))
    if len(shape) == 1:
        around_zero = name.endswith("bias") or name.startswith(_GEMMA_NORMS)
        around = 0.0 if around_zero else 1.0
        drawn = around + 0.1 * drawn
    else:
        drawn /= np.sqrt(np.prod(shape[1:]))
    found: Floats = drawn.astype(np.float32)
    return found


def pixels(seed: int, shape: Sequence[int]) -> Floats:
    drawn: Floats = np.random.RandomState(seed).uniform(-1, 1, tuple(shape)).astype(np.float32)
    return drawn


def prompt(counts: Sequence[int]) -> list[int]:
    """Text, then for each image so many placeholders between its two marks, with text behind."""
    ids = [int(i) for i in np.random.RandomState(5).randint(1, 100, 7)]
    for number, count in enumerate(counts):
        text = [int(i) for i in np.random.RandomState(number).randint(1, 100, 9)]
        ids += [START_ID, *[IMAGE_ID] * count, END_ID, *text]
    return ids
