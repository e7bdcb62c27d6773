"""The tiny configs of all families in one table, but for those that tests/tiny_models.py has."""

from typing import Any

from tests.architectures.dense import COMMON, DENSE, SLIDING
from tests.architectures.experts import EXPERTS
from tests.architectures.recurrent import RECURRENT
from tests.architectures.vision import VISION

TABLE: dict[str, dict[str, Any]] = {**DENSE, **EXPERTS, **RECURRENT, **VISION}

# Their classes call a Metal kernel and have nothing in its place: no CPU runs them.
METAL_ONLY: dict[str, dict[str, Any]] = {
    "bitnet": {**COMMON, "head_dim": 16},
    "muse_spark": {
        "text_config": {
            **SLIDING,
            "post_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "layer_rope_theta": [10000.0, 0.0] * 2,
            "final_logit_softcapping": 30.0,
            "output_multiplier": 1.0,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_hidden_size": 32,
            "moe_intermediate_size": 32,
        },
    },
}
