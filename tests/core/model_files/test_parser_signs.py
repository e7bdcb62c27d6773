"""Parsers by name: those that there are, and which of them a model needs."""

import pytest

from omlx_server.core.model_files.parser_signs import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    reasoning_parser_of,
    tool_parser_of,
)
from omlx_server.text.reasoning.style import STYLES
from omlx_server.text.tool_calls.formats import FAMILIES


def test_the_names_are_those_that_the_server_knows() -> None:
    assert set(FAMILIES) == TOOL_PARSERS
    assert set(STYLES) == REASONING_PARSERS


@pytest.mark.parametrize("declared", [None, "unheard_of", 3, ["laguna"]])
def test_what_is_declared_counts_only_if_there_is_such_a_parser(declared: object) -> None:
    assert tool_parser_of("[TOOL_CALLS]", (), "laguna") == "laguna"
    assert tool_parser_of("[TOOL_CALLS]", (), declared) == "mistral"


def test_where_no_tools_are_shown_no_sign_counts() -> None:
    assert tool_parser_of("[TOOL_CALLS]", (), "laguna", shows_tools=False) == "json_tools"


def test_the_template_goes_before_the_vocabulary_for_calls_and_after_it_for_thoughts() -> None:
    tokens = {"<|tool_call_start|>", "<|tool_call_end|>", "[THINK]", "[/THINK]"}
    assert tool_parser_of("<arg_key>", tokens) == "glm47"
    assert tool_parser_of("", tokens) == "pythonic"
    assert reasoning_parser_of("<think></think>", tokens) == "mistral"
    assert reasoning_parser_of("<think></think>", ()) == "think"
    assert reasoning_parser_of("<think>", {"</think>"}) == "none"
