"""`chat` as a person at a terminal sees it: a real pty, and an emulator that reads what it gets."""

import json
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import ServerProcess
from tests.cli.conftest import FAKE_SERVER
from tests.cli.pseudo_terminal import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    CTRL_J,
    ENTER,
    TAB,
    UP,
    PseudoTerminal,
    at_terminal,
)
from tests.cli.talk.cable import Cable

COLOUR = re.compile(rb"\x1b\[[0-9;]*(?:3[0-7]|9[0-7])[;m]")
GREEDY = ("--temperature", "0")
LONG = (*GREEDY, "--max-tokens", "2500")
ANSWER = """\
# Weather

It will **rain** all day long, so that whoever goes out should take an umbrella along.

```python
def rain(drops):

    return drops
```
| day | drops |
|---|---|
| one | 17 |

Red: \x1b[31mno\x1b[0m, clear: \x1b[2J\x9b2J, title: \x1b]0;stolen\x07."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that always answers with Markdown and with codes for a terminal."""
    words = [sys.executable, str(FAKE_SERVER)]
    environ = {"PATH": "", "FAKE_ANSWER": ANSWER}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.terminate()


@contextmanager
def chatting(url: str, *words: str, **how: Any) -> Iterator[PseudoTerminal]:
    with at_terminal("chat", "--url", url, *words, **how) as terminal:
        terminal.shows("\n>")
        yield terminal


def say(terminal: PseudoTerminal, text: str) -> None:
    """Say it, and wait for the end of the answer."""
    answers = terminal.text.count("first token")
    terminal.type(text + ENTER)
    terminal.shows("first token", answers + 1)
    terminal.ends_with("\n>")


def asked(terminal: PseudoTerminal, file: Path) -> list[str]:
    """What the user said in the conversation so far."""
    count = terminal.text.count("[saved ")
    terminal.type(f"/save {file.name}{ENTER}")
    terminal.shows("[saved ", count + 1)
    return [m["content"] for m in json.loads(file.read_text()) if m["role"] == "user"]


def test_an_answer_is_markdown_and_can_not_control_the_terminal(url: str) -> None:
    with chatting(url, columns=60, rows=40) as terminal:
        say(terminal, "How is it?")
        text = terminal.text
        assert "Weather\n\nIt will rain all day long" in text
        assert "should\ntake an umbrella along.\n\n```python\ndef rain(drops):\n\n" in text
        assert re.search(r"```\n\n +day +drops *\n[ ─]+\n +one +17 *\n\nRed: ", text)
        assert "Red: [31mno[0m, clear: [2J2J, title: ]0;stolen." in text
        assert terminal.style("rain").bold and terminal.style("Weather").bold
        assert terminal.style("def").fg != terminal.style("no[").fg == "default"
        for code in (b"\x1b[31m", b"\x1b[2J", b"\x9b2J", b"\x1b]0;", b"\x07"):
            assert code not in terminal.raw.partition(b"How is it?")[2]
        terminal.type(CTRL_D)
        assert terminal.ends() == 0


def test_messages_have_several_lines_and_what_was_typed_can_be_found_again(
    url: str, home: Path
) -> None:
    state = home / "state"
    with chatting(url, rows=200, XDG_STATE_HOME=str(state)) as terminal:
        say(terminal, f"a\\{ENTER}b")
        say(terminal, f'"""{ENTER}c{ENTER}d"""')
        say(terminal, f"e{CTRL_J}f{ALT_ENTER}g")
        terminal.paste("h\ni")
        say(terminal, " j")
        said = ["a\nb", "c\nd", "e\nf\ng", "h\ni j"]
        assert asked(terminal, home / "a.json") == said
        terminal.type("/reg" + TAB)
        terminal.shows("/regenerate")
        say(terminal, "")
        assert asked(terminal, home / "a.json") == said
        terminal.type(CTRL_D)
        assert terminal.ends() == 0
    file = state / "omlx_server" / "chat_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with chatting(url, XDG_STATE_HOME=str(state)) as terminal:
        terminal.type(UP)
        terminal.shows("> /save a.json")
        terminal.type(CTRL_C)
        _leave_with_ctrl_c(terminal)
    with chatting(url, "--no-history", XDG_STATE_HOME=str(state)) as terminal:
        say(terminal, "secret")
        _leave_with_ctrl_c(terminal)
    assert b"secret" not in file.read_bytes()


def _leave_with_ctrl_c(terminal: PseudoTerminal) -> None:
    """It takes two in a row: a message between begins anew, and what is typed is cleared first."""
    asks = "[Ctrl-C again leaves; so does Ctrl-D]"
    terminal.type(CTRL_C)
    terminal.shows(f"{asks}\n>")
    terminal.type("typed" + CTRL_C)
    terminal.type("/new" + ENTER)
    terminal.shows("> /new\n[a new conversation]\n>")
    terminal.type(CTRL_C)
    terminal.shows(f"{asks}\n>", 2)
    terminal.type(CTRL_C)
    assert terminal.ends() == 0


def test_a_narrow_terminal_without_colours_shows_every_line_once(url: str, home: Path) -> None:
    with chatting(url, columns=24, rows=6, NO_COLOR="1") as terminal:
        file = home / ".local" / "state" / "omlx_server" / "chat_history"
        file.unlink()
        file.mkdir()  # then nothing can be kept, which is told once
        say(terminal, "Hi")
        say(terminal, "Again")
        assert terminal.raw.count(b"[no history is kept: Is a directory]") == 1
        assert terminal.text.count("def rain(drops):") == 2
        words = "It will rain all day\nlong, so that whoever\ngoes out should take an"
        assert terminal.text.count(words) == 2
        assert not COLOUR.search(terminal.raw)
        terminal.type(CTRL_D)
        assert terminal.ends() == 0


@pytest.mark.parametrize(("option", "term"), [("--plain", "xterm"), ("", "dumb")])
def test_a_plain_terminal_gets_no_codes_at_all(url: str, option: str, term: str) -> None:
    words = filter(None, (option,))
    with chatting(url, *words, columns=200, rows=60, TERM=term, NO_COLOR="1") as terminal:
        terminal.type("Hi\n")
        assert "# Weather\n\nIt will **rain** all day long" in terminal.shows("first token")
        terminal.type(CTRL_C)
        terminal.shows("[Ctrl-C again leaves; so does Ctrl-D]\n>")
        terminal.type(CTRL_D)
        assert terminal.ends() == 0
        assert b"\x1b[" not in terminal.raw.replace(b"\x1b[?2004", b"")


# --- A real server -------------------------------------------------------------------------------


def test_thoughts_are_dimmed_and_counted_and_what_is_cut_says_so(thinker: ServerProcess) -> None:
    limits = ("--temperature", "0", "--max-tokens")
    with chatting(thinker.url, *limits, "40") as terminal:
        say(terminal, "Hi")
        assert re.search(r"\[thought for \d+\.\d s]\n\n.", terminal.text)
        assert terminal.style("[thought for") != terminal.style("> Hi")
        assert "[cut at 40 tokens: --max-tokens raises it]" in terminal.text
        said = " ".join(terminal.text.split())
        assert re.search(
            r"40 tokens \(thought for \d+ tokens, \d+\.\d s\), \d+ of \d+ prompt", said
        )
        dimmed = re.findall(rb"\x1b\[2m[^\x1b]*\x1b\[0m", terminal.raw)
        assert any(b"thought for" in piece for piece in dimmed) and len(dimmed) > 3
    with chatting(thinker.url, *limits, "3") as terminal:
        terminal.type("Hi" + ENTER)  # three tokens can come at once, and then have no rate
        terminal.shows("cached]")
        terminal.ends_with("\n>")
        said = " ".join(terminal.text.split())
        assert "[cut at 3 tokens, before it came to an answer: --max-tokens raises it]" in said


def test_what_came_of_a_stopped_answer_is_kept(thinker: ServerProcess, home: Path) -> None:
    cable = Cable(thinker.url)
    with chatting(cable.url, *LONG) as terminal:
        terminal.type("Hi" + ENTER)
        terminal.shows(" s]\n\n")
        terminal.type(CTRL_C)
        terminal.shows("[stopped; what came is kept]\n>")
        assert asked(terminal, home / "a.json") == ["Hi"]
        answer = json.loads((home / "a.json").read_text())[-1]
        assert answer["role"] == "assistant" and answer["content"]
    cable.cut()


def test_what_is_typed_into_an_answer_is_not_seen_in_it_and_is_the_next_message(
    thinker: ServerProcess, home: Path
) -> None:
    cable = Cable(thinker.url)
    with chatting(cable.url, *GREEDY, "--max-tokens", "400") as terminal:
        terminal.type("Go on" + ENTER)
        terminal.shows("[thought for")
        before = len(terminal.raw)
        terminal.type("/system typed ahead" + ENTER)
        terminal.shows("first token")
        assert b"/system" not in terminal.raw[before:].partition(b"first token")[0]
        terminal.shows("> /system typed ahead\ntyped ahead\n>")
    cable.cut()


def test_the_oldest_turns_leave_a_full_context(thinker: ServerProcess, home: Path) -> None:
    turn = [
        {"role": "user", "content": "Why? " * 99},
        {"role": "assistant", "content": "No. " * 99},
    ]
    (home / "long.json").write_text(json.dumps(turn * 20))
    with chatting(thinker.url, "--temperature", "0", "--max-tokens", "5", rows=60) as terminal:
        terminal.type("/load long.json" + ENTER)
        terminal.shows("[40 messages; the conversation goes on from there]\n>")
        say(terminal, "Hi")
        assert re.search(
            r"\[the context is full: the oldest \d+ messages are left out\]", terminal.text
        )
        say(terminal, "And now?")
        assert terminal.text.count("the context is full") == 1
        cached = re.findall(r"(\d+) of (\d+) prompt", " ".join(terminal.text.split()))
        assert int(cached[1][0]) > int(cached[1][1]) * 0.8


def test_a_lost_server_ends_an_answer_but_not_the_conversation(
    thinker: ServerProcess, home: Path
) -> None:
    cable = Cable(thinker.url)
    with chatting(cable.url, *LONG) as terminal:
        terminal.type("Hi" + ENTER)
        terminal.shows(" s]\n\n")
        cable.cut()
        terminal.shows("\nerror: ")
        terminal.shows("\n>", 2)
        terminal.type("/regenerate" + ENTER)
        terminal.shows(f"error: no server answers at {cable.url}\n")
        cable.join()
        terminal.type("/regenerate" + ENTER)
        terminal.shows(" s]\n\n", 2)  # and something behind it, which can be kept
        terminal.type(CTRL_C)
        terminal.shows("[stopped; what came is kept]\n>")
        assert asked(terminal, home / "a.json") == ["Hi"]
    cable.cut()
