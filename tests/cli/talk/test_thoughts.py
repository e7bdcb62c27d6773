"""`chat` with a model that thinks: its thoughts are seen, counted, and no part of stdout."""

import json
import re

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.cli.shell.output import harmless
from omlx_server.cli.shell.screen import THOUGHTS_BEGIN, THOUGHTS_END
from tests.api.harness import ServerProcess
from tests.cli.pseudo_terminal import at_terminal
from tests.cli.talk.conftest import THINKING_BUDGET

runner = CliRunner()
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def chat(url: str, *arguments: str, stdin: str = "") -> Result:
    return runner.invoke(app, ["chat", "--url", url, "--temperature", "0", *arguments], input=stdin)


def test_thoughts_are_marked_and_no_part_of_the_answer(thinker: ServerProcess) -> None:
    expected = thinker.chat("Hi", max_tokens=60)["choices"][0]["message"]
    result = chat(thinker.url, "--once", "Hi", "--max-tokens", "60")
    assert result.exit_code == 0
    assert result.stderr.startswith(
        f"{THOUGHTS_BEGIN}\n{harmless(expected['reasoning_content'])}\n{THOUGHTS_END}\n["
    )
    assert result.stdout == f"{harmless(expected['content'])}\n"


def test_thoughts_are_counted(thinker: ServerProcess) -> None:
    usage = thinker.chat("Hi", max_tokens=60)["usage"]
    thoughts = usage["completion_tokens_details"]["reasoning_tokens"]
    assert thoughts >= THINKING_BUDGET
    said = chat(thinker.url, "--once", "Hi", "--max-tokens", "60").stderr
    tokens = f"{usage['completion_tokens']} tokens (thought for {thoughts} tokens, "
    assert re.search(f"tok/s, {re.escape(tokens)}[0-9.]+ s\\), ", said)
    (speed,) = re.findall(r"([\d.]+) tok/s", said)
    assert float(speed) > 0


@pytest.mark.parametrize(
    ("most", "says", "counts"),
    [
        (1, "[cut at 1 token, before it came to an answer: ", " s, 1 token (thought for 1 token, "),
        (3, "[cut at 3 tokens, before it came to an answer: ", " s, 3 tokens (thought for 3 t"),
        (40, "[cut at 40 tokens: ", "/s, 40 tokens (thought for "),
    ],
)
def test_what_was_cut_is_marked(thinker: ServerProcess, most: int, says: str, counts: str) -> None:
    lines = chat(thinker.url, "--once", "Hi", "--max-tokens", str(most)).stderr.splitlines()
    assert lines[-2] == f"{says}--max-tokens raises it]"
    assert lines[-1].startswith("[first token after ") and counts in lines[-1]


def test_a_turn_without_a_text_is_not_remembered(thinker: ServerProcess) -> None:
    def prompt_tokens(stdin: str) -> list[str]:
        said = chat(thinker.url, "--max-tokens", "2", stdin=stdin).stderr
        return re.findall(r"of (\d+) prompt tokens", said)

    (alone,) = prompt_tokens("Hello\n")
    assert prompt_tokens("Hi\nHello\n")[1] == alone


def test_on_a_terminal_thoughts_are_dimmed(thinker: ServerProcess) -> None:
    message = thinker.chat("Hi", max_tokens=60)["choices"][0]["message"]
    expected = harmless(message["reasoning_content"])
    shown = once_at_terminal(thinker.url)
    thoughts, _, _ = shown.partition(harmless(message["content"]))
    pieces = re.findall(f"{re.escape(DIM)}(.*?){re.escape(PLAIN)}", thoughts, re.DOTALL)
    assert "".join(pieces) == expected
    assert THOUGHTS_BEGIN not in shown and DIM not in shown.rpartition(PLAIN)[2]
    plain = once_at_terminal(thinker.url, no_color="1")
    assert f"{THOUGHTS_BEGIN}\n{expected}\n{THOUGHTS_END}\n" in plain and DIM not in plain


def once_at_terminal(url: str, no_color: str = "") -> str:
    """What a terminal is written by both streams of one answer."""
    words = ("chat", "--url", url, "--once", "Hi", "--temperature", "0", "--max-tokens", "60")
    with at_terminal(*words, NO_COLOR=no_color) as terminal:
        assert terminal.ends() == 0
    return terminal.raw.decode().replace("\r\n", "\n")


def test_an_error_within_a_thought_is_told_on_a_line_of_its_own(server_url: str) -> None:
    result = chat(server_url, "--once", "think and crash")
    assert result.exit_code == 1
    assert result.stderr == f"{THOUGHTS_BEGIN}\nHmm.\n{THOUGHTS_END}\nerror: the engine fell over\n"
    assert result.stdout == ""


def test_a_stopped_thought_can_be_followed_by_another_turn(server_url: str) -> None:
    result = chat(server_url, stdin="think and crash\nrepeat\n")
    sent = json.loads(result.stdout.splitlines()[0])
    assert [message["content"] for message in sent["messages"]] == ["repeat"]
