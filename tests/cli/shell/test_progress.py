"""Progress is lines where nobody looks on, and a bar on a terminal."""

from io import StringIO

import pytest

from omlx_server.cli.shell.progress import open_display
from tests.cli.terminal import Terminal


def test_lines_come_at_each_stage_and_each_tenth() -> None:
    stream = StringIO()
    with open_display(stream) as display:
        for done in range(1001):
            display.update("download", done, 1000)
        display.update("convert", 0, 0)
        display.update("convert", 3, 0)
    assert stream.getvalue().splitlines() == [
        *(f"download: {percent} %" for percent in range(0, 101, 10)),
        "convert",
    ]


def test_a_bar_names_its_stages_and_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with open_display(stream) as display:
        display.update("download", 0, 0)
        display.update("download", 50, 100)
        display.update("convert", 1, 4)
        display.close()
    assert "download" in stream.getvalue()
    assert "50%" in stream.getvalue()
    assert "25%" in stream.getvalue()


def test_nothing_is_drawn_without_an_update() -> None:
    stream = Terminal()
    with open_display(stream):
        pass
    assert stream.getvalue().strip() == ""
