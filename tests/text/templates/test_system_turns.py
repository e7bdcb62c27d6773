"""System messages, wherever a template can take them."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.templates.turn_forms import SystemTurns
from tests.text import chat_templates
from tests.text.conftest import Load

bounded = settings(max_examples=200, deadline=None, derandomize=True)

ROLES = {"s": "system", "u": "user", "a": "assistant"}
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('a system message must be the first') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
# Gemma's first.
NONE_AT_ALL = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
KINDS = {
    "CHATML": (chat_templates.CHATML, SystemTurns(True, True, True)),
    "TOOLS": (chat_templates.TOOLS, SystemTurns(True, False, False)),
    "FIRST_ONLY": (FIRST_ONLY, SystemTurns(True, False, False)),
    "NONE_AT_ALL": (NONE_AT_ALL, SystemTurns(False, False, False)),
    "INST": (chat_templates.INST, SystemTurns(False, False, False)),
}


def aside(text: str) -> str:
    """What a late system message becomes where there can be none."""
    return f"<system>\n{text}\n</system>"


def turns(pattern: str) -> list[dict[str, Any]]:
    """`su`: a system message "s0" and a user's "u1"."""
    return [{"role": ROLES[c], "content": f"{c}{i}"} for i, c in enumerate(pattern)]


def shown(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [f"{message['role'][0]}:{message['content']}" for message in messages]


@pytest.mark.parametrize("name", KINDS)
def test_what_a_template_can_take_is_found_out(load: Load, name: str) -> None:
    source, expected = KINDS[name]
    assert SystemTurns.of(ChatTemplate(load("byte_level", source)).render) == expected


@pytest.mark.parametrize(
    ("systems", "pattern", "expected"),
    [
        (SystemTurns(), "ssuasu", ["s:s0", "s:s1", "u:u2", "a:a3", "s:s4", "u:u5"]),
        (SystemTurns(many=False), "ssuasu", ["s:s0\n\ns1", "u:u2", "a:a3", "s:s4", "u:u5"]),
        (SystemTurns(late=False), "suasu", ["s:s0", "u:u1", "a:a2", f"u:{aside('s3')}\n\nu4"]),
        (SystemTurns(late=False), "suas", ["s:s0", "u:u1", "a:a2", f"u:{aside('s3')}"]),
        (SystemTurns(late=False), "sus", ["s:s0", f"u:u1\n\n{aside('s2')}"]),
        (SystemTurns(False, False, False), "ssuau", ["u:s0\n\ns1\n\nu2", "a:a3", "u:u4"]),
        (SystemTurns(False, False, False), "su", ["u:s0\n\nu1"]),
        (SystemTurns(False, False, False), "s", ["u:s0"]),
        (SystemTurns(False, False, False), "uu", ["u:u0", "u:u1"]),
    ],
)
def test_messages_are_fitted(systems: SystemTurns, pattern: str, expected: list[str]) -> None:
    assert shown(systems.fitted(turns(pattern))) == expected


@pytest.mark.parametrize("name", KINDS)
@bounded
@given(
    rounds=st.lists(st.sampled_from(["ua", "sua", "usa", "uas"]), max_size=4),
    front=st.integers(0, 2),
)
def test_no_word_is_lost_and_none_is_moved(
    load: Load, name: str, rounds: list[str], front: int
) -> None:
    messages = turns("s" * front + "".join(rounds) + "u")
    before = copy.deepcopy(messages)
    source, systems = KINDS[name]
    rendering = ChatTemplate(load("byte_level", source)).render(systems.fitted(messages))
    places = [rendering.find(message["content"]) for message in messages]
    assert places == sorted(places) and -1 not in places
    assert messages == before


@bounded
@given(pattern=st.text("sua", min_size=1, max_size=8), more=st.text("sua", max_size=4))
def test_more_turns_change_nothing_before_them(pattern: str, more: str) -> None:
    """But where they join the last one, so that the cache finds what it had."""
    for systems in (SystemTurns(late=False), SystemTurns(), SystemTurns(many=False, late=False)):
        short, long = (
            systems.fitted(turns("su" + pattern)),
            systems.fitted(turns("su" + pattern + more)),
        )
        assert long[: len(short) - 1] == short[:-1]
        assert long[len(short) - 1]["content"].startswith(short[-1]["content"])
