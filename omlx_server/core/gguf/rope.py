"""The scaling of positions, in mlx-lm's words. llama.cpp has it as fields, or as factors of each
pair of values."""

import math
from collections.abc import Sequence

from omlx_server.core.gguf.fields import Config, Fields, shortest

_NOT_TURNED = 1e29  # a factor of values without a position


def turned_pairs(fields: Fields) -> int:
    """Return how many pairs of values of Gemma 4's full heads have a position."""
    factors = fields.factors("rope_freqs.weight")
    return sum(factor < _NOT_TURNED for factor in factors)


def rope_scaling(fields: Fields) -> Config | None:
    factors = fields.factors("rope_freqs.weight")
    if factors and max(factors) < _NOT_TURNED:
        return _llama3(factors, fields)
    kind = fields("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ValueError(f"its rope scaling is {kind!r}")
    scaling = {"rope_type": kind, "type": kind, "factor": fields("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = fields("rope.scaling.original_context_length")
    return scaling


def _llama3(factors: Sequence[float], fields: Fields) -> Config:
    """Return the scaling of Llama 3.1 and later, of which a file has only the factors."""
    scaling = {
        "rope_type": "llama3",
        "factor": shortest(factors[-1]),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    base, count = fields("rope.freq_base", 10000.0), len(factors)
    for i, factor in enumerate(factors):
        turns = 8192 / (2 * math.pi * base ** (i / count))
        smooth = min(1.0, max(0.0, (turns - 1) / 3))
        expected = 1 / ((1 - smooth) / scaling["factor"] + smooth)
        if abs(factor - expected) > 1e-3 * expected:
            raise ValueError("its rope_freqs.weight is not the scaling of Llama 3")
    return scaling


def long_rope(fields: Fields) -> Config:
    """Return the scaling of Phi 3 and MiniCPM 4. mlx-lm takes the long factors for all texts."""
    long = fields.factors("rope_factors_long.weight")
    if not long:
        return {}
    context = fields.size("context_length")
    original = fields.size("rope.scaling.original_context_length")
    stretch = context / original
    scale = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    if abs(fields("rope.scaling.attn_factor", scale) - scale) > 1e-3 * scale:
        raise ValueError("its rope.scaling.attn_factor is not that of its context")
    scaling = {
        "rope_type": "longrope",
        "type": "longrope",
        "original_max_position_embeddings": original,
        "long_factor": list(long),
        "short_factor": list(fields.factors("rope_factors_short.weight")),
    }
    return {"original_max_position_embeddings": original, "rope_scaling": scaling}


def deepseek_yarn(fields: Fields) -> Config:
    """Return the scaling of DeepSeek, whose class of version 2 needs one."""
    scaling = rope_scaling(fields) or {"type": "yarn", "factor": 1.0}
    scale = shortest(10 * fields("rope.scaling.yarn_log_multiplier", 0.0))
    return {"rope_scaling": {**scaling, "mscale": scale, "mscale_all_dim": scale}}
