"""How a model writes thoughts and calls, where a name says it instead of the template."""

from collections.abc import Callable

import pytest

from omlx_server.text.dialect import dialect_of
from omlx_server.text.reasoning.style import STYLES
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.tool_calls.formats import FAMILIES

Load = Callable[..., Tokenizer]
SHOWS_TOOLS = "{% for tool in tools %}{{ tool }}{% endfor %}<tool_call> tool_call.name"
THINKS = "{{ '<think>' }}{{ '</think>' }}"


def render(messages: object, **_: object) -> str:
    return ""


def test_without_names_the_template_decides(load: Load) -> None:
    dialect = dialect_of(load("byte_level", SHOWS_TOOLS + THINKS), render)
    assert (dialect.family.name, dialect.style) == ("json_tools", STYLES["think"])
    assert dialect.thinks and dialect.shows_tools


@pytest.mark.parametrize("template", [SHOWS_TOOLS, "{{ messages }}"])
def test_a_named_tool_parser_goes_before_it(load: Load, template: str) -> None:
    dialect = dialect_of(load("byte_level", template), render, "qwen3_coder")
    assert dialect.family is FAMILIES["qwen3_coder"]


def test_a_template_without_tools_is_taught_json(load: Load) -> None:
    assert dialect_of(load("byte_level", "[TOOL_CALLS]"), render).family.name == "json_tools"


def test_a_named_reasoning_parser_goes_before_it(load: Load) -> None:
    dialect = dialect_of(load("byte_level", THINKS), render, "", "mistral")
    assert (dialect.style, dialect.thinks) == (STYLES["mistral"], False)
    assert dialect_of(load("byte_level", "plain"), render, "", "think").style is STYLES["think"]


def test_none_tells_no_thoughts_apart(load: Load) -> None:
    dialect = dialect_of(load("byte_level", THINKS), render, "", "none")
    assert (dialect.style, dialect.thinks) == (None, False)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tool_parser_has_a_dialect(load: Load, name: str) -> None:
    assert dialect_of(load("byte_level", SHOWS_TOOLS), render, name).family.name == name


@pytest.mark.parametrize("name", STYLES)
def test_every_reasoning_parser_has_a_dialect(load: Load, name: str) -> None:
    dialect = dialect_of(load("byte_level", SHOWS_TOOLS), render, "", name)
    assert dialect.style is STYLES[name]


def test_where_a_system_message_hides_the_tools_the_user_says_it(load: Load) -> None:
    template = (
        "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}"
        "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% endif %}"
        "{% for message in messages if message.role != 'system' %}{{ message.content }}{% endfor %}"
    )
    tokenizer = load("byte_level", template)
    dialect = dialect_of(tokenizer, ChatTemplate(tokenizer).render)
    assert dialect.systems.first and not dialect.systems_beside_tools.first
