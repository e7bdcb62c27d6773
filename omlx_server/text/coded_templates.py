"""Chat templates that mlx-lm has as code (`CODED_TEMPLATES` in
core/model_files/parser_signs.py)."""

from collections.abc import Mapping, Sequence
from typing import Any

from mlx_lm.chat_templates.deepseek_v32 import apply_chat_template


def deepseek_v32(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    enable_thinking: bool,
) -> str:
    """Render mlx-lm's template of DeepSeek V3.2. It shows tools only in a system message, so one
    is added."""
    turns = list(messages)
    if tools and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": ""})
    rendering = apply_chat_template(
        turns,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        enable_thinking=enable_thinking,
    )
    return str(rendering)
