"""The bytes of a token's keys and values, by config.json of models that people have."""

from typing import Any

import pytest

from omlx_server.core.model_files.kv_size import token_bytes

LLAMA = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
GEMMA_TYPES = [*["sliding_attention"] * 5, "full_attention"] * 8


@pytest.mark.parametrize(
    ("changed", "nbytes"),
    [
        ({}, 131_072),
        ({"head_dim": 64}, 65_536),
        ({"num_key_value_heads": None}, 524_288),
        ({"text_config": {"num_hidden_layers": 16}}, 65_536),
        ({"full_attention_interval": 4, "num_key_value_heads": 4, "head_dim": 256}, 32_768),
        ({"layer_types": GEMMA_TYPES, "num_hidden_layers": 48, "head_dim": 256}, 65_536),
        ({"sliding_window_pattern": 6, "num_hidden_layers": 34}, 5 * 4096),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 27}, 31_104),
    ],
)
def test_all_layers_that_keep_all_tokens_count(changed: dict[str, Any], nbytes: int) -> None:
    assert token_bytes({**LLAMA, **changed}) == nbytes


@pytest.mark.parametrize(
    "config",
    [{}, {"num_hidden_layers": 4}, {**LLAMA, "num_hidden_layers": "x"}, {"text_config": []}],
)
def test_what_a_config_does_not_say_is_not_guessed(config: dict[str, Any]) -> None:
    assert token_bytes(config) is None
