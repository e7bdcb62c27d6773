"""A template of the user's own is tried before a model is loaded with it."""

import pytest

from omlx_server.errors import ConfigError
from omlx_server.text.templates.check import check_template
from tests.text import chat_templates

LOOP = "{% for m in messages %}\n"
FAULTY = {
    LOOP + "{{ m.content }}\n{% endfor %}{% endfor %}": (3, "TemplateSyntaxError: Encountered"),
    LOOP + "{{ m.content": (2, "TemplateSyntaxError: unexpected end"),
    "{{ foo|nofilter }}": (1, "TemplateAssertionError: No filter named"),
    LOOP + "\n{{ m.content + 3 }}{% endfor %}": (3, "TypeError: can only"),
    "\n{{ raise_exception('no\nway') }}": (2, "TemplateError: no"),
    "\n{{ messages[3].x.y }}": (2, "UndefinedError: "),
    "{{ messages[0].content.__class__.__mro__ }}": (1, "SecurityError: "),
    "{{" + "(" * 20_000: (None, "RecursionError: "),
    "{% for i in range(99999) %}{{ ' ' * 99999 }}{% endfor %}": (None, "RenderingTooLong: "),
}


@pytest.mark.parametrize(("source", "told"), FAULTY.items(), ids=range(len(FAULTY)))
def test_a_faulty_one_is_an_error_of_one_line_with_its_place(
    source: str, told: tuple[int | None, str]
) -> None:
    line, reason = told
    where = "/p/x.jinja" if line is None else f"/p/x.jinja, line {line}"
    message = refusal(source)
    assert message.startswith(f"{where}: the chat template is faulty: {reason}")
    assert "\n" not in message


@pytest.mark.parametrize("source", ["", "Hello"])
def test_so_is_one_that_shows_nothing_of_a_conversation(source: str) -> None:
    assert refusal(source) == "/p/x.jinja: the chat template does not show the user's message"


def refusal(source: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_template(source, "/p/x.jinja")
    return caught.value.message


def test_those_that_models_have_will_do() -> None:
    sources = {shape for own in chat_templates.FOR_FAMILY.values() for shape in own}
    for source in (*sources, LOOP + "{{ bos_token + m.content[0].text }}{% endfor %}"):
        if isinstance(source, str):
            check_template(source, "x")
