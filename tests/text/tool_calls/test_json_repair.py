"""JSON that comes in pieces: valid as it is, anything else made valid."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.text.tool_calls.json_repair import JsonRepair, repair_json

bounded = settings(max_examples=150, deadline=None, derandomize=True)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
objects = st.dictionaries(st.text(max_size=4), values, max_size=4)
soup = st.text("{}[],:\"'\\ntu0d8 1.-e\n\x00aT", max_size=30)


@bounded
@given(value=objects, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_valid_json_is_not_touched(
    value: dict[str, object], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert repair_json(text) == text


@bounded
@given(value=objects, place=st.integers(0, 400))
def test_what_was_told_of_cut_json_is_its_beginning(value: dict[str, object], place: int) -> None:
    text = json.dumps(value)
    repair = JsonRepair()
    told = "".join(f.text for char in text[:place] for f in repair.feed(char))
    assert text.startswith(told)
    json.loads(told + "".join(f.text for f in repair.close()) or "{}")


@settings(max_examples=600, deadline=None, derandomize=True)
@given(text=soup)
def test_anything_becomes_json(text: str) -> None:
    json.loads(repair_json("{" + text))
    json.loads(repair_json("[" + text))


@bounded
@given(value=objects)
def test_members_of_the_root_are_told(value: dict[str, object]) -> None:
    repair = JsonRepair()
    members: dict[str, str] = {}
    ended = []
    for fragment in [f for char in json.dumps(value) for f in repair.feed(char)]:
        if fragment.member is not None:
            members[fragment.member] = members.get(fragment.member, "") + fragment.text
        if fragment.last:
            ended.append(fragment.member)
    assert {name: json.loads(text) for name, text in members.items()} == value
    assert ended == list(value)


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        ('{"a": "b', '{"a": "b"}'),
        ('{"a": "b\\', '{"a": "b"}'),
        ('{"a": "b\\u12', '{"a": "b"}'),
        ('{"a": "\\u12x"}', '{"a": "\\\\u12x"}'),
        ('{"a": "\\d"}', '{"a": "\\\\d"}'),
        ('{"a": "x\ny"}', '{"a": "x\\ny"}'),
        ('{"a": 1,}', '{"a": 1}'),
        ('{"a": [1, 2}', '{"a": [1, 2]}'),
        ('{"a": 1 "b": 2}', '{"a": 1 ,"b": 2}'),
        ('{"a" 1}', '{"a" :1}'),
        ("{a: b}", '{"a": "b"}'),
        ("{'it': 'a\\'b\"'}", '{"it": "a\'b\\""}'),
        ('{"a": None, "b": True, "c": NaN}', '{"a": null, "b": true, "c": null}'),
        ('{"a":, "b": 1}', '{ "b": 1}'),
        ('{"a": 12.', '{"a": 12}'),
        ('{"a": -', "{}"),
        ('{"a": 1, "ci', '{"a": 1}'),
        ('{"a": 1}}} x', '{"a": 1}'),
    ],
)
def test_repairs(broken: str, whole: str) -> None:
    assert repair_json(broken) == whole
    json.loads(whole)
