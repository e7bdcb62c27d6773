"""A tiny config of every architecture of mlx-lm, as its `config.json` would have it.

The name is the model type; what follows a plus is a second config of that architecture.
"""

from typing import Any

from tests import tiny_models
from tests.architectures.table import TABLE

CONFIGS: dict[str, dict[str, Any]] = {
    name: {"model_type": name.partition("+")[0], **config}
    for name, config in {**tiny_models.CONFIGS, **TABLE}.items()
}

# Why mlx-lm has no model of this type to offer, as of 0.32.2.
CANNOT_BUILD: dict[str, str] = {
    "olmo": "its module ends the process unless the package ai2-olmo is installed",
}

# What these answer depends on how their prompt is cut into passes, by a fault of mlx-lm 0.32.2.
CUT_MATTERS: dict[str, str] = {
    "phi3small": "its blocks add the mask of booleans to the scores: a pass sees its own future",
    "plamo3": "a pass sees one token more than the window that its cache keeps",
}

# Of these keys and values are copied into each row and each block.
COPIED = {"deepseek_v32", "deepseek_v41", "glm_moe_dsa", "minimax_m3_vl", "phi3small"}

# What these answer in a batch is not what they answer alone, or they fail there, by mlx-lm 0.32.2.
ALONE_ONLY: dict[str, str] = {
    "afm7": "its last layers rotate queries by the width of the batch, whatever a row's offset is",
    "deepseek_v41": "its cache has no form for a batch",
    "gemma2": "the mask of a batch has one dimension less than the scores of its grouped heads",
    "gpt_bigcode": "it counts positions with numpy from one offset",
    "internlm2": "dynamic rope scaling compares the offsets with a length as if they were one",
    "internlm3": "dynamic rope scaling compares the offsets with a length as if they were one",
    "llama4": "the cache of its chunks has no form for a batch",
    "minimax_m3_vl": "it chooses blocks of keys by their place in the batch, padding included",
    "phi3small": "the mask of a batch has one dimension less than the scores of its grouped heads",
}
