"""Log lines: for people on a terminal, JSON elsewhere."""

import json
import logging
import sys

import pytest

from omlx_server.process.logs import ForPeople, JsonLogFormatter, formatter


def record(message: str, *args: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("omlx_server.x", level, __file__, 1, message, args, None)


@pytest.mark.parametrize(
    ("style", "terminal", "kind"),
    [
        ("auto", True, ForPeople),
        ("auto", False, JsonLogFormatter),
        ("rich", False, ForPeople),
        ("json", True, JsonLogFormatter),
    ],
)
def test_who_gets_what(style: str, terminal: bool, kind: type[logging.Formatter]) -> None:
    assert type(formatter(style, terminal=terminal, coloured=True)) is kind


def test_colours_are_for_terminals_that_want_them() -> None:
    line = record("hi", level=logging.WARNING)
    assert "\x1b[33mWARNING" in formatter("auto", terminal=True, coloured=True).format(line)
    for terminal, coloured in ((True, False), (False, True)):
        text = formatter("rich", terminal=terminal, coloured=coloured).format(line)
        assert "\x1b" not in text
        assert text.endswith("WARNING omlx_server.x: hi")


def test_a_line_break_can_not_forge_a_line() -> None:
    text = JsonLogFormatter().format(record("one\n{%s}", "two\u2028\x85"))
    assert len(text.split("\n")) == 1
    assert json.loads(text)["message"] == "one\n{two\u2028\x85}"


def test_fields_and_exceptions_are_in_the_object() -> None:
    line = record("it failed")
    try:
        raise ValueError("why")
    except ValueError:
        line.exc_info = sys.exc_info()
    line.fields = {"status": 500}
    found = json.loads(JsonLogFormatter().format(line))
    assert (found["status"], found["level"]) == (500, "info")
    assert "ValueError: why" in found["exception"]
    assert "request_id" not in found
