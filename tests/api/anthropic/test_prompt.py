"""A Messages request as a chat request: everything but the turns."""

from pathlib import Path
from typing import Any

import pytest

from omlx_server.api.anthropic.prompt import chat_request
from omlx_server.api.anthropic.request import CountRequest, MessagesRequest
from omlx_server.api.chat.request import ChatRequest
from omlx_server.errors import BadRequest
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from tests.text import chat_templates, makers

Json = dict[str, Any]

USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD = {"name": "add", "description": "Adds.", "input_schema": SCHEMA, "cache_control": None}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}

# Qwen 3.5: strict about the system message.
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatTemplate]:
    result = {}
    sources = {"CHATML": chat_templates.CHATML, "TOOLS": chat_templates.TOOLS, "STRICT": STRICT}
    for name, source in sources.items():
        path: Path = tmp_path_factory.mktemp(name)
        makers.save(path, "byte_level", source)
        result[name] = ChatTemplate(Tokenizer.load(path))
    return result


@pytest.fixture
def template(made: dict[str, ChatTemplate]) -> ChatTemplate:
    return made["CHATML"]


def asked(*turns: Json, **fields: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 50, "messages": list(turns) or [USER], **fields}
    return MessagesRequest.model_validate(body)


def given(chat: ChatRequest) -> Json:
    return chat.model_dump(exclude_unset=True)


def test_a_small_request_asks_for_no_more_than_it_says(template: ChatTemplate) -> None:
    chat = given(chat_request(asked(), template))
    assert set(chat) == {"model", "messages", "max_completion_tokens"}
    assert (chat["model"], chat["max_completion_tokens"]) == ("m", 50)


def test_fields_that_mean_the_same_go_over(template: ChatTemplate) -> None:
    fields: Json = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "min_p": 0.125,
        "seed": 9,
        "stream": True,
        "ignore_eos": True,
        "speculation": "off",
        "cache_salt": "s",
        "priority": -1,
    }
    chat = given(chat_request(asked(**fields, stop_sequences=["a", "b"]), template))
    assert fields.items() <= chat.items()
    assert chat["stop"] == ["a", "b"]


def test_tools_are_functions(template: ChatTemplate) -> None:
    tools = [{**ADD, "strict": True}, {"type": "custom", "name": "now", "input_schema": {}}, SEARCH]
    chat = given(chat_request(asked(tools=tools), template))
    assert "tool_choice" not in chat
    assert chat["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Adds.",
                "parameters": SCHEMA,
                "strict": True,
            },
        },
        {"type": "function", "function": {"name": "now", "parameters": {}}},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "add"}, {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tool_choice(template: ChatTemplate, choice: Json, expected: Any) -> None:
    for single in (None, False, True):
        wanted = {**choice, "disable_parallel_tool_use": single}
        chat = given(chat_request(asked(tools=[ADD], tool_choice=wanted), template))
        assert chat["tool_choice"] == expected
        assert chat.get("parallel_tool_calls") is (False if single else None)


def test_a_choice_among_no_tools(template: ChatTemplate) -> None:
    for choice in ("auto", "none"):
        chat = chat_request(asked(tools=[SEARCH], tool_choice={"type": choice}), template)
        assert (chat.tools, chat.tool_choice) == (None, None)


def test_how_it_may_think(made: dict[str, ChatTemplate]) -> None:
    """In the words of the template, if it has any."""
    for name, told in (("CHATML", False), ("TOOLS", True)):
        thinking: Json = {"type": "enabled", "budget_tokens": 49}
        chat = chat_request(asked(thinking=thinking), made[name])
        assert chat.thinking_budget == 49
        assert chat.chat_template_kwargs == ({"enable_thinking": True} if told else None)
        for kind in ("adaptive", "between_tools", "disabled"):
            thinking = {"type": kind, "display": "omitted"}
            chat = chat_request(asked(thinking=thinking), made[name])
            thinks = {"enable_thinking": kind != "disabled"}
            assert chat.chat_template_kwargs == (thinks if told else None)
            assert chat.thinking_budget is None


def test_what_the_template_is_told_goes_before_thinking(made: dict[str, ChatTemplate]) -> None:
    kwargs = {"enable_thinking": False}
    request = asked(thinking={"type": "adaptive"}, chat_template_kwargs=kwargs)
    assert chat_request(request, made["TOOLS"]).chat_template_kwargs == kwargs


@pytest.mark.parametrize("old", [False, True])
def test_the_form_of_the_answer(template: ChatTemplate, old: bool) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    fields = {"output_format": form} if old else {"output_config": {"format": form}}
    chat = given(chat_request(asked(**fields), template))
    assert chat["response_format"]["type"] == "json_schema"
    assert chat["response_format"]["json_schema"]["schema"] == SCHEMA


def test_effort(template: ChatTemplate) -> None:
    for effort in ("low", "medium", "high", "xhigh", "max"):
        chat = chat_request(asked(output_config={"effort": effort}), template)
        assert chat.reasoning_effort == effort


def test_a_final_assistant_turn_is_continued(template: ChatTemplate) -> None:
    chat = chat_request(asked(USER, {"role": "assistant", "content": "The"}), template)
    assert (chat.continue_final_message, chat.add_generation_prompt) == (True, False)


def test_what_is_counted_is_what_is_asked(template: ChatTemplate) -> None:
    fields: Json = {
        "system": "Be kind.",
        "tools": [ADD],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "enabled", "budget_tokens": 9},
        "output_config": {"effort": "low"},
    }
    counted = CountRequest.model_validate({"model": "m", "messages": [USER], **fields})
    asked_for = given(chat_request(asked(**fields), template))
    del asked_for["max_completion_tokens"]
    assert given(chat_request(counted, template)) == asked_for


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"name": "add"}]}, "tools.0"),
        ({"tools": [{"input_schema": {}}]}, "tools.0"),
        ({"tools": [ADD, ADD]}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}, "tools": [SEARCH]}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [ADD]}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool"}, "tools": [ADD]}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 50}}, "thinking.budget_tokens"),
        (
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}],
                    },
                ]
            },
            "messages",
        ),
    ],
)
def test_what_contradicts_itself(template: ChatTemplate, fields: Json, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat_request(asked(**fields), template)
    assert caught.value.param == param
