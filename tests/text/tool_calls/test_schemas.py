"""Whatever a client calls a tool, mlx-lm's parsers get a form that they can read."""

from typing import Any

import pytest

from omlx_server.text.tool_calls.formats import FAMILIES
from omlx_server.text.tool_calls.schemas import plain_tools
from tests.text.tool_calls.answers import ANSWERS
from tests.text.tool_calls.reading import read

ODD: list[Any] = [
    {"function": {"name": "get_weather", "parameters": None}},
    {"function": {"name": "clock", "parameters": {"properties": {"a": True, "b": {"type": 7}}}}},
]


def kind_of(schema: dict[str, Any]) -> Any:
    tool = {"function": {"name": "f", "parameters": {"properties": {"a": schema}}}}
    return plain_tools([tool])[0]["function"]["parameters"]["properties"]["a"].get("type")


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string"),
        ({"type": ["string", "integer"]}, ["string", "integer"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        ({"anyOf": [{"type": "string"}, {}]}, None),
        ({"enum": ["1", "2"]}, "string"),
        ({"enum": ["1", 2]}, None),
        ({"const": 1}, None),
    ],
)
def test_the_one_type_of_a_parameter(schema: dict[str, Any], kind: Any) -> None:
    assert kind_of(schema) == kind


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_odd_tools_stop_no_parser(family: str) -> None:
    for answer in (a for a in ANSWERS if a.family == family):
        result = read(family, [answer.written], ODD)
        assert [call.name for call in result.calls] == [name for name, _ in answer.calls]


def test_a_nullable_string_is_not_read_as_a_number() -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
        },
    }
    written = "<tool_call>f<arg_key>a</arg_key><arg_value>12</arg_value></tool_call>"
    assert read("glm47", [written], [tool]).calls[0].arguments == '{"a": "12"}'
