"""The configs of published models: what is read of them for the tower, and of how images are
prepared, fits together. No weights are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
from mlx.utils import tree_flatten

from omlx_server.compute.vision.families import family_of
from omlx_server.images.prepare.families import make_preparer

_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@dataclass(frozen=True, slots=True)
class _Published:
    """Parts of config.json and of preprocessor_config.json as they are published. `weights`: how
    many tensors the tower has, and `tokens` those of an image of 1920 x 1080 pixels."""

    config: Mapping[str, Any]
    preprocessor: Mapping[str, Any]
    weights: int
    tokens: int
    tiles: tuple[int, int] = (0, 0)


_QWEN2_5 = _Published(  # Qwen/Qwen2.5-VL-3B-Instruct
    {
        "model_type": "qwen2_5_vl",
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {
            "depth": 32,
            "hidden_act": "silu",
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "in_chans": 3,
            "out_hidden_size": 2048,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
            "tokens_per_second": 2,
            "temporal_patch_size": 2,
        },
    },
    {
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
    },
    weights=390,
    tokens=39 * 69,
)
_QWEN3 = _Published(  # Qwen/Qwen3-VL-4B-Instruct
    {
        "model_type": "qwen3_vl",
        "text_config": {
            "head_dim": 128,
            "hidden_size": 2560,
            "num_attention_heads": 32,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20]},
        },
        "vision_config": {
            "deepstack_visual_indexes": [5, 11, 17],
            "depth": 24,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1024,
            "in_channels": 3,
            "intermediate_size": 4096,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": 2560,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    },
    {
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        **_HALF,
    },
    weights=315,
    tokens=34 * 60,
)
_GEMMA3 = _Published(  # google/gemma-3-4b-it
    {
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": {"hidden_size": 2560},
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
    {
        "do_pan_and_scan": None,
        "image_processor_type": "Gemma3ImageProcessor",
        "image_seq_length": 256,
        "pan_and_scan_max_num_crops": None,
        "processor_class": "Gemma3Processor",
        "resample": 2,
        "size": {"height": 896, "width": 896},
        **_HALF,
    },
    weights=439,
    tokens=256,
)
_SMOLVLM = _Published(  # HuggingFaceTB/SmolVLM-256M-Instruct
    {
        "model_type": "idefics3",
        "scale_factor": 4,
        "text_config": {"hidden_size": 576},
        "vision_config": {
            "hidden_size": 768,
            "image_size": 512,
            "intermediate_size": 3072,
            "max_image_size": {"longest_edge": 512},
            "num_attention_heads": 12,
            "patch_size": 16,
            "size": {"longest_edge": 2048},
            "use_base_siglip": False,
        },
    },
    {
        "do_image_splitting": True,
        "image_processor_type": "Idefics3ImageProcessor",
        "max_image_size": {"longest_edge": 512},
        "processor_class": "Idefics3Processor",
        "resample": 1,
        "size": {"longest_edge": 2048},
        **_HALF,
    },
    weights=198,
    tokens=13 * 64,
    tiles=(3, 4),
)
_ALL = {"qwen2_5": _QWEN2_5, "qwen3": _QWEN3, "gemma3": _GEMMA3, "smolvlm": _SMOLVLM}


@pytest.mark.parametrize("published", _ALL.values(), ids=_ALL)
def test_a_published_tower_takes_what_is_prepared_for_it(published: _Published) -> None:
    family = family_of(published.config)
    assert family is not None
    tower = family.make(published.config)
    plan = make_preparer(published.preprocessor, published.config).plan(1080, 1920)
    assert (plan.tokens, plan.tiles) == (published.tokens, published.tiles)
    assert tower.tokens(plan.grid) == plan.run_tokens
    assert prod(tower.pixel_shape(plan.grid)) * plan.runs == prod(plan.shape)
    assert len(tree_flatten(tower.parameters())) == published.weights


@pytest.mark.parametrize("published", [_QWEN2_5, _QWEN3], ids=["qwen2_5", "qwen3"])
def test_the_axes_of_a_published_model_fill_its_heads(published: _Published) -> None:
    family = family_of(published.config)
    sections = family.sections(published.config) if family else None
    assert sections is not None
    axes = sections.axes().tolist()
    assert tuple(map(axes.count, range(3))) == sections.counts
