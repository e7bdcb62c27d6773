"""A model's family is the one that mlx-lm would choose."""

from types import SimpleNamespace

import pytest
from mlx_lm.tokenizer_utils import _infer_tool_parser

from omlx_server.core.model_files.parser_signs import TOOL_PARSERS, tool_parser_of
from omlx_server.text.tool_calls.formats import FAMILIES
from tests.text import chat_templates

XTML = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
CASES: list[tuple[str, tuple[str, ...], str]] = [
    ("<minimax:tool_call>", (), "minimax_m2"),
    ("<|tool_call>x<tool_call|>", (), "gemma4"),
    ("<start_function_call>", (), "function_gemma"),
    ("<longcat_tool_call>", (), "longcat"),
    ("<tool_call>name<arg_key>", (), "glm47"),
    ("<|tool_list_start|>", (), "pythonic"),
    ("<|tool_call_start|>", (), "pythonic"),
    ("<tool_call>\\n<function=", (), "qwen3_coder"),
    ("<tool_call>\n<function=", (), "qwen3_coder"),
    ("<|tool_calls_section_begin|>", (), "kimi_k2"),
    ('<function name="<param name="', (), "minicpm5"),
    ("[TOOL_CALLS]", (), "mistral"),
    ("<atem:function_calls>", (), "muse_spark"),
    ("<tool_call>{{ tool_call.name }}", (), "json_tools"),
    ("", XTML, "kimi_k3"),
    ("", ("<|tool_call_start|>", "<|tool_call_end|>"), "pythonic"),
    ("[TOOL_CALLS]<arg_key>", XTML, "glm47"),
]


@pytest.mark.parametrize(("template", "vocabulary", "name"), CASES)
def test_the_family_is_that_of_mlx_lm(
    template: str, vocabulary: tuple[str, ...], name: str
) -> None:
    words = dict.fromkeys(vocabulary, 0)
    tokenizer = SimpleNamespace(chat_template=template, get_vocab=lambda: words)
    assert _infer_tool_parser(tokenizer) == name
    assert tool_parser_of(template, words) == name


def test_every_parser_of_mlx_lm_is_known() -> None:
    assert {name for _, _, name in CASES} | {"laguna"} <= set(FAMILIES)
    assert set(FAMILIES) == TOOL_PARSERS


def test_a_template_without_a_sign_gets_json() -> None:
    assert tool_parser_of(chat_templates.CHATML, ()) == "json_tools"


def test_the_declared_family_wins() -> None:
    assert tool_parser_of("[TOOL_CALLS]", (), "laguna") == "laguna"
    assert tool_parser_of("[TOOL_CALLS]", (), "unheard_of") == "mistral"
