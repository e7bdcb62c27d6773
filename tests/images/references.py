"""The processors of transformers that need no torch, which ours are compared with."""

from collections.abc import Mapping
from typing import Any

from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from omlx_server.images.bitmap import Bitmap

_HALF = [0.5, 0.5, 0.5]
_CLIP = [[0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]]
# Name -> the processor and the fields of the preprocessor_config.json of published models, some
# of them smaller.
CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen2-vl": (
        Qwen2VLImageProcessorPil,
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": 3136,
            "max_pixels": 200_704,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": _CLIP[0],
            "image_std": _CLIP[1],
        },
    ),
    "qwen3-vl": (
        Qwen2VLImageProcessorPil,
        {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": _HALF,
            "image_std": _HALF,
        },
    ),
    "qwen-defaults": (Qwen2VLImageProcessorPil, {"processor_class": "Qwen2_5_VLProcessor"}),
    "gemma3": (
        Gemma3ImageProcessorPil,
        {
            "image_processor_type": "Gemma3ImageProcessor",
            "do_convert_rgb": None,
            "do_normalize": True,
            "do_pan_and_scan": None,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": _HALF,
            "image_std": _HALF,
            "resample": 2,
            "rescale_factor": 0.00392156862745098,
            "size": {"height": 896, "width": 896},
        },
    ),
    "gemma3-odd": (
        Gemma3ImageProcessorPil,
        {
            "image_processor_type": "Gemma3ImageProcessor",
            "image_mean": [0.1, 0.2, 0.3],
            "image_std": [0.7, 0.8, 0.9],
            "resample": 0,
            "rescale_factor": 0.01,
            "size": {"height": 70, "width": 42},
        },
    ),
    "gemma3-raw": (
        Gemma3ImageProcessorPil,
        {"do_rescale": False, "do_normalize": False, "processor_class": "Gemma3Processor"},
    ),
    "idefics3": (
        Idefics3ImageProcessorPil,
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "image_mean": _HALF,
            "image_std": _HALF,
            "max_image_size": {"longest_edge": 364},
            "resample": 1,
            "size": {"longest_edge": 728},
        },
    ),
    "smolvlm": (
        SmolVLMImageProcessorPil,
        {
            "image_processor_type": "SmolVLMImageProcessor",
            "do_image_splitting": True,
            "max_image_size": {"longest_edge": 32},
            "size": {"longest_edge": 128},
            "resample": 1,
        },
    ),
    "smolvlm-odd": (
        SmolVLMImageProcessorPil,
        {
            "image_processor_type": "SmolVLMImageProcessor",
            "max_image_size": {"longest_edge": 20},
            "size": {"longest_edge": 70},
            "resample": 3,
        },
    ),
    "smolvlm-long": (
        SmolVLMImageProcessorPil,
        {
            "image_processor_type": "SmolVLMImageProcessor",
            "max_image_size": {"longest_edge": 512},
            "size": {"longest_edge": 5000},
        },
    ),
    "smolvlm-whole": (
        SmolVLMImageProcessorPil,
        {
            "image_processor_type": "SmolVLMImageProcessor",
            "do_image_splitting": False,
            "max_image_size": {"longest_edge": 64},
            "size": {"longest_edge": 128},
        },
    ),
}


def reference(name: str, bitmap: Bitmap) -> Mapping[str, Any]:
    """What the processor of that name makes of the bitmap, with numpy."""
    make, config = CONFIGS[name]
    known = {key: value for key, value in config.items() if not key.endswith(("_type", "_class"))}
    is_tiled = make in (Idefics3ImageProcessorPil, SmolVLMImageProcessorPil)
    options = {"return_row_col_info": True} if is_tiled else {}
    image = Image.fromarray(bitmap.pixels)
    result: Mapping[str, Any] = make(**known)(image, return_tensors="np", **options)
    return result
