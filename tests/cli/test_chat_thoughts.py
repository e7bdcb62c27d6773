"""`chat` with a model that thinks: its thoughts are seen, counted, and no part of stdout."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.cli.shell.screen import BEGIN, END
from tests.api.conftest import THINKING
from tests.api.harness import REPO, ServerProcess, serving
from tests.text import makers
from tests.tiny_models import save_tiny

runner = CliRunner()
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
BUDGET = 8


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """It thinks for a few tokens, then answers."""
    models = tmp_path_factory.mktemp("models")
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(makers.save(models / "thinker", "byte_level", THINKING), "llama", vocab_size=vocab)
    sets = [f"models.dirs={models}", "memory.activation_reserve=64MB"]
    own = {"thinker": {"chat_template_kwargs": {"thinking_budget": BUDGET}}}
    sets += [f"models.overrides={json.dumps(own)}"]
    with serving("thinker", tmp_path_factory.mktemp("thinker"), *sets) as server:
        yield server


def chat(url: str, *arguments: str, stdin: str = "") -> Result:
    return runner.invoke(app, ["chat", "--url", url, "--temperature", "0", *arguments], input=stdin)


def test_thoughts_are_marked_and_no_part_of_the_answer(thinker: ServerProcess) -> None:
    expected = thinker.chat("Hi", max_tokens=60)["choices"][0]["message"]
    result = chat(thinker.url, "--once", "Hi", "--max-tokens", "60")
    assert result.exit_code == 0
    assert result.stderr == f"{BEGIN}\n{expected['reasoning_content']}\n{END}\n"
    assert result.stdout.startswith(f"{expected['content']}\n[")


def test_thoughts_are_counted(thinker: ServerProcess) -> None:
    usage = thinker.chat("Hi", max_tokens=60)["usage"]
    thoughts = usage["completion_tokens_details"]["reasoning_tokens"]
    assert thoughts >= BUDGET
    said = chat(thinker.url, "--once", "Hi", "--max-tokens", "60").stdout
    assert f"tok/s, {usage['completion_tokens']} tokens ({thoughts} of thoughts), " in said
    (speed,) = re.findall(r"([\d.]+) tok/s", said)
    assert float(speed) > 0


@pytest.mark.parametrize(
    ("most", "says"),
    [
        (3, "[cut at 3 tokens, before it came to an answer: --max-tokens raises it]"),
        (40, "[cut at 40 tokens: --max-tokens raises it]"),
    ],
)
def test_what_was_cut_is_marked(thinker: ServerProcess, most: int, says: str) -> None:
    lines = chat(thinker.url, "--once", "Hi", "--max-tokens", str(most)).stdout.splitlines()
    assert lines[-2] == says
    assert lines[-1].startswith("[first token after ") and f" {most} tokens (" in lines[-1]


def test_a_turn_without_a_text_is_not_remembered(thinker: ServerProcess) -> None:
    def prompt_tokens(stdin: str) -> list[str]:
        said = chat(thinker.url, "--max-tokens", "2", stdin=stdin).stdout
        return re.findall(r"of (\d+) prompt tokens", said)

    (alone,) = prompt_tokens("Hello\n")
    assert prompt_tokens("Hi\nHello\n")[1] == alone


def test_on_a_terminal_thoughts_are_dimmed(thinker: ServerProcess) -> None:
    expected = thinker.chat("Hi", max_tokens=60)["choices"][0]["message"]["reasoning_content"]
    shown = at_terminal(thinker.url, "60")
    pieces = re.findall(f"{re.escape(DIM)}(.*?){re.escape(PLAIN)}", shown, re.DOTALL)
    assert "".join(pieces) == expected
    assert BEGIN not in shown and DIM not in shown.rpartition(PLAIN)[2]
    plain = at_terminal(thinker.url, "60", NO_COLOR="1")
    assert f"{BEGIN}\n{expected}\n{END}\n" in plain and DIM not in plain


def at_terminal(url: str, max_tokens: str, **environ: str) -> str:
    """What a terminal is written by both streams of one answer."""
    ours, theirs = pty.openpty()
    words = ["chat", "--url", url, "--once", "Hi", "--temperature", "0", "--max-tokens", max_tokens]
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(
        [sys.executable, "-m", "omlx_server", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env | {"PYTHONPATH": str(REPO)} | environ,
    ):
        os.close(theirs)
        written = b""
        while piece := _read(ours):
            written += piece
    os.close(ours)
    return written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # on Linux that is how a terminal ends
        return b""


def test_an_error_within_a_thought_is_told_on_a_line_of_its_own(server_url: str) -> None:
    result = chat(server_url, "--once", "think and crash")
    assert result.exit_code == 1
    assert result.stderr == f"{BEGIN}\nHmm.\n{END}\nerror: the engine fell over\n"
    assert result.stdout == ""


def test_a_stopped_thought_can_be_followed_by_another_turn(server_url: str) -> None:
    result = chat(server_url, stdin="think and crash\nrepeat\n")
    sent = json.loads(result.stdout.splitlines()[0])
    assert [message["content"] for message in sent["messages"]] == ["repeat"]
