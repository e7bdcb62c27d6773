"""Chooses parsers by a model's template and vocabulary. Pure."""

from collections.abc import Collection, Mapping

JSON_TOOLS = "json_tools"
NO_REASONING = "none"

Signs = tuple[tuple[tuple[str, ...], str], ...]
"""(texts, parser) pairs: the first parser whose texts are all in one place is chosen."""

# Signs in a template: ours first, then mlx-lm's in its order (_infer_tool_parser).
_TOOL_SIGNS: Signs = (
    (("<|START_ACTION|>",), "cohere"),
    (("Action:", '"tool_name"'), "command_r"),
    ((" functools[",), "firefunction"),
    (("<seed:tool_call>",), "seed_oss"),
    (("｜DSML｜", "function_calls>"), "deepseek_v32"),
    (("｜DSML｜", "tool_calls>"), "deepseek_v4"),
    (("<｜tool▁calls▁begin｜>",), "deepseek_v3"),
    (("<|tools_prefix|>",), "apertus"),
    (("<TOOLCALL>",), "nemotron_nano"),
    (("<|tool_call:begin|>",), "solar"),
    ((":opensource", "<tool_sep{}>"), "hy3"),
    (("]<]minimax[>[",), "minimax_m3"),
    (("<|action_start|><|plugin|>",), "internlm2"),
    (("<tool_calls>",), "tool_calls_list"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<|tool_call>", "<tool_call|>"), "gemma4"),
    (("<start_function_call>",), "function_gemma"),
    (("<longcat_tool_call>",), "longcat"),
    (("<arg_key>",), "glm47"),
    (("<|tool_list_start|>",), "pythonic"),
    (("<|tool_call_start|>",), "pythonic"),
    (("<tool_call>\\n<function=",), "qwen3_coder"),
    (("<tool_call>\n<function=",), "qwen3_coder"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (('<function name="', '<param name="'), "minicpm5"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<atem:function_calls>",), "muse_spark"),
    (("<tool_call>", "tool_call.name"), JSON_TOOLS),
    (("<tool_call>",), JSON_TOOLS),
    (("<function=", "</function>"), "functionary"),
    (("<|function_call|>",), "gigachat3_1"),
    (("function call", "<|role_sep|>"), "gigachat"),
    (("<|tool_call|>",), "granite"),
    (("<|tool|>", "<|/tool|>"), "granite"),
    (("<|python_start|>",), "llama4"),
    (("<|python_tag|>",), "llama3"),
)
_TOOL_SIGNS_IN_TOKENS: Signs = (
    (("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"), "kimi_k3"),
    (("<|tool_call_start|>", "<|tool_call_end|>"), "pythonic"),
)
# mlx-lm's signs (_infer_thinking), and ours.
_REASONING_SIGNS: Signs = (
    (("<|START_THINKING|>", "<|END_THINKING|>"), "cohere"),
    (("<|inner_prefix|>", "<|inner_suffix|>"), "apertus"),
    (("<mm:think>", "</mm:think>"), "minimax_m3"),
    (("<think:opensource>", "</think:opensource>"), "hy3"),
    (("[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:"), "apriel"),
    (("<|begin|>", "<|think|>", "<|content|>"), "solar"),
    (("to=self", "<|eom|>"), "muse"),
    (("<|channel|>", "<|message|>", "<|start|>"), "harmony"),
    (("<think>", "</think>"), "think"),
    (("<longcat_think>", "</longcat_think>"), "longcat"),
    (("<|think:start|>", "<|think:end|>"), "think_start"),
    (("[THINK]", "[/THINK]"), "mistral"),
    (("<seed:think>", "</seed:think>"), "seed_oss"),
    (("<|channel>", "<channel|>"), "gemma4"),
    (("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"), "kimi_k3"),
)

# No template has a sign of laguna: a tokenizer's configuration declares it.
TOOL_PARSERS = frozenset({"laguna"} | {name for _, name in (*_TOOL_SIGNS, *_TOOL_SIGNS_IN_TOKENS)})
REASONING_PARSERS = frozenset({NO_REASONING} | {name for _, name in _REASONING_SIGNS})

CODED_TEMPLATES: Mapping[str, str] = {
    "deepseek_v32": (
        "{#- <think> </think> ｜DSML｜function_calls> -#}"
        "{{ deepseek_v32(messages, tools, add_generation_prompt, "
        "enable_thinking | default(true)) }}"
    )
}
"""By `chat_template_type`: a template that calls code, with its parsers' signs in a comment."""


def tool_parser_of(
    template: str, vocabulary: Collection[str], declared: object = None, *, shows_tools: bool = True
) -> str:
    """Return the parser for tool calls: the tool_parser_type `declared` if known, else by signs."""
    if not shows_tools:
        return JSON_TOOLS
    if isinstance(declared, str) and declared in TOOL_PARSERS:
        return declared
    return (
        _first_parser(_TOOL_SIGNS, template)
        or _first_parser(_TOOL_SIGNS_IN_TOKENS, vocabulary)
        or JSON_TOOLS
    )


def parser_beside(template: str) -> str:
    """Return the parser for calls of a model whose template shows no tools."""
    return _first_parser(_TOOL_SIGNS, template)


def reasoning_parser_of(template: str, vocabulary: Collection[str]) -> str:
    """Return the parser for thoughts, by control tokens, else by the template."""
    return (
        _first_parser(_REASONING_SIGNS, vocabulary)
        or _first_parser(_REASONING_SIGNS, template)
        or NO_REASONING
    )


def has_recipients(template: str) -> bool:
    """Return whether each message of an answer begins with a recipient, as in functionary 3.2."""
    return ">>>${recipient}" in template


def _first_parser(signs: Signs, place: str | Collection[str]) -> str:
    return next((name for texts, name in signs if all(text in place for text in texts)), "")
