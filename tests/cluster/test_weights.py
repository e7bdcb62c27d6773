"""Each rank has its share of the weights in memory, and whole only what mlx-lm does not split."""

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tests.cluster.group import Group
from tests.cluster.scenarios import Scenario
from tests.tiny_models import save_tiny

SIZE = 2
# The rest is on each rank: embeddings, the head, norms, routers, and matrices of a low rank.
SPLIT = {
    "llama": r"self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj",
    "qwen3_moe": r"self_attn\.[qkvo]_proj|mlp\.(switch_mlp\.|)(gate|up|down)_proj",
    "gpt_oss": (
        r"self_attn\.(sinks|[qkv]_proj|o_proj\.weight)"
        r"|experts\.((gate|up)_proj|down_proj\.weight)"
    ),
    "deepseek_v3": (
        r"self_attn\.(q_b_proj|embed_q|unembed_out|o_proj)"
        r"|mlp\.(shared_experts\.|switch_mlp\.|)(gate|up|down)_proj"
    ),
}
LARGE: dict[str, Any] = {"hidden_size": 512, "num_hidden_layers": 4}
CHANGES: dict[str, dict[str, Any]] = {
    "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"] * 2}
}


@pytest.mark.parametrize("architecture", [*SPLIT, "qwen3_next"])
def test_each_rank_has_its_share(two: Group, architecture: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, architecture, **LARGE, **CHANGES.get(architecture, {}))
    loaded = mx.load(str(tmp_path / "model.safetensors"))
    assert isinstance(loaded, dict)
    weights = {name: array.nbytes for name, array in loaded.items()}
    reply = two.reply(Scenario(architecture, tokens=2, path=str(tmp_path)))
    for rank, (held, active) in enumerate(reply.parts):
        whole, share = expected(architecture, weights, rank)
        assert share > whole, "a share would not be seen"
        assert held - whole == pytest.approx(share, rel=0.1)
        assert active - whole == pytest.approx(share, rel=0.1)


def expected(architecture: str, weights: dict[str, int], rank: int) -> tuple[int, float]:
    """Bytes of the weights that each rank has, and of this rank's share of all others."""
    if architecture in SPLIT:
        split = re.compile(rf"\.({SPLIT[architecture]})(\.|$)")
        share = sum(nbytes for name, nbytes in weights.items() if split.search(name)) / SIZE
        return sum(nbytes for name, nbytes in weights.items() if not split.search(name)), share
    layers = LARGE["num_hidden_layers"] // SIZE
    first = (SIZE - 1 - rank) * layers  # rank 0 has the last ones
    own = tuple(f"model.layers.{number}." for number in range(first, first + layers))
    share = sum(nbytes for name, nbytes in weights.items() if name.startswith(own))
    return sum(n for name, n in weights.items() if not name.startswith("model.layers.")), share
