"""The commands of a conversation, and the files that /save and /load know."""

import json
import os
import stat
import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.cli.talk import slash
from omlx_server.cli.talk.terminal.prompt import history_file
from omlx_server.cli.talk.terminal.several_lines import is_open, message_of
from omlx_server.errors import OmlxError, UsageError
from tests.cli.json_handler import JsonHandler
from tests.cli.program import ROOT, imported_by

runner = CliRunner()
HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "It is Paris."}]


def chat(url: str, stdin: str, *options: str) -> Result:
    return runner.invoke(app, ["chat", "--url", url, *options], input=stdin)


def sent(result: Result) -> list[list[str]]:
    """The contents of the messages of each request that the server repeats."""
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    return [[m["content"] for m in json.loads(line)["messages"]] for line in lines]


def test_a_conversation_goes_on_from_its_file(server_url: str, home: Path) -> None:
    said = chat(server_url, "hello\n/save talk.json\n", "--system", "Be brief.")
    assert "[saved to talk.json]" in said.stderr
    system = {"role": "system", "content": "Be brief."}
    assert json.loads((home / "talk.json").read_text()) == [system, *HELLO]
    assert stat.S_IMODE((home / "talk.json").stat().st_mode) == 0o600
    said = chat(server_url, "/load talk.json\nrepeat\n/save talk.json\n/new\nrepeat\n")
    assert "[3 messages; the conversation goes on from there]" in said.stderr
    assert "[a new conversation; the system message stays]" in said.stderr
    assert "[a new conversation]\n" in chat(server_url, "/clear\n").stderr
    assert "[saved over talk.json]" in said.stderr
    assert sent(said) == [["Be brief.", "hello", "It is Paris.", "repeat"], ["Be brief.", "repeat"]]
    assert len(json.loads((home / "talk.json").read_text())) == 5


def test_a_file_may_have_parts_and_be_the_body_of_a_request(server_url: str, home: Path) -> None:
    parts = [{"type": "text", "text": "Hi"}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts, "name": "x"}]}
    (home / "body.json").write_text(json.dumps(body))
    assert sent(chat(server_url, "/load body.json\nrepeat\n")) == [[parts, "repeat"]]


WRONG = {
    "nothing": "is no JSON",
    "[" * 100_000: "is no JSON",
    "\udcff": "is no JSON",
    "[]": "has no list of messages",
    '{"messages": 1}': "has no list of messages",
    "[1]": "message 1: it is no object",
    '[{"role": "user", "content": "a"}, {"role": "tool", "content": ""}]': "message 2: its role",
    '[{"role": "user"}]': "message 1: its content",
    '[{"role": ["user"], "content": [1]}]': "message 1: its role",
    '[{"role": "user", "content": [1]}]': "message 1: its content",
}


@pytest.mark.parametrize(("text", "problem"), WRONG.items(), ids=WRONG.values())
def test_what_is_no_conversation_is_told_and_stays(home: Path, text: str, problem: str) -> None:
    path = home / "a.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UsageError, match=problem):
        slash.load(path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is there, and no conversation that /save wrote"):
        slash.save(path, HELLO)
    assert path.read_bytes() == before


@pytest.mark.parametrize("theirs", [{"messages": HELLO}, [HELLO[0] | {"name": "x"}]])
def test_a_file_that_can_be_loaded_but_was_not_saved_here_stays(home: Path, theirs: object) -> None:
    path = home / "a.json"
    path.write_text(json.dumps(theirs))
    assert slash.load(path)
    with pytest.raises(UsageError, match="no conversation that /save wrote"):
        slash.save(path, HELLO)
    assert json.loads(path.read_text()) == theirs


def test_a_failed_command_leaves_the_conversation_as_it_was(server_url: str, home: Path) -> None:
    (home / "bad.json").write_text("[1]")
    lines = ["/save a.json", f"/save {'x' * 300}", "hello", f"/save {'x' * 300}", "/save a\0b"]
    lines += ["/load none.json", "/load bad.json", "/load", "/load .", "/save", "/save a b"]
    said = chat(server_url, "\n".join([*lines, "/save no/such/place", "/model x", "repeat\n"]))
    errors = [line for line in said.stderr.splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: nothing was said yet",
        "error: nothing was said yet",
        f"error: {'x' * 300}: File name too long",
        "error: a?b can't be the name of a file",
        "error: none.json: No such file or directory",
        "error: bad.json, message 1: it is no object",
        "error: a file is missing",
        "error: . is no file",
        "error: a file is missing",
        "error: there is more than a file",
        "error: no/such/place: No such file or directory",
        "error: the server has no x",
    ]
    assert sent(said) == [["hello", "It is Paris.", "repeat"]]


def test_a_saved_text_can_not_control_a_terminal(home: Path) -> None:
    hostile = [{"role": "user", "content": "\x1b[2J\x9b2J\x7f\u2028 \ud800"}]
    slash.save(home / "a.json", hostile)
    text = (home / "a.json").read_text()
    assert all(letter.isprintable() or letter in "\n\u2028" for letter in text)
    assert slash.load(home / "a.json")[0]["content"] == "\x1b[2J\x9b2J\x7f\u2028 ?"


def test_the_last_question_is_asked_again(server_url: str) -> None:
    said = chat(server_url, "/regenerate\nhello\nrepeat\n/regenerate\nrefuse\n/regenerate\ncount\n")
    assert said.stderr.startswith("error: nothing was asked yet\n")
    assert sent(said) == [["hello", "It is Paris.", "repeat"]] * 2
    assert said.stderr.count("error: the model refuses") == 2
    assert said.stdout.splitlines()[-1] == "5"


def test_a_question_that_failed_twice_is_still_asked_once(server_url: str) -> None:
    again = "/system refuse\n/regenerate\n/system -\n/regenerate\n"
    said = chat(server_url, f"repeat\n{again}")
    assert said.stderr.count("error: the model refuses") == 1
    assert sent(said) == [["repeat"]] * 2


def test_the_system_message_and_the_model_can_be_changed(server_url: str) -> None:
    said = chat(
        server_url, "/system\n/system Be kind.\nrepeat\n/system -\nrepeat\n/model starter\n"
    )
    assert said.stderr.count("[there is no system message]\n") == 2
    assert said.stderr.splitlines()[1] == "Be kind."
    first, second = sent(said)
    assert first == ["Be kind.", "repeat"] and second[0] == "repeat"
    assert said.stderr.splitlines()[-1] == "* starter"


def test_parameters_of_answers_can_be_set(server_url: str) -> None:
    lines = ["/set", "/set temperature 0.5", "/set parameter seed 7", "/set stop a,b", "repeat"]
    lines += ["/set", "/set temperature", "/set temperature -", "/set max_tokens 9", "repeat"]
    said = chat(server_url, "\n".join([*lines, ""]), "--max-tokens", "5", "--temperature", "0")
    first, second = [json.loads(x) for x in said.stdout.splitlines() if x.startswith("{")]
    names = ("temperature", "seed", "stop", "max_tokens")
    assert [first.get(name) for name in names] == [0.5, 7, ["a", "b"], 5]
    assert [second.get(name) for name in names] == [None, 7, ["a", "b"], 9]
    assert [x for x in said.stderr.splitlines() if " tokens" not in x] == [
        *("[temperature: 0.0]", "[max_tokens: 5]"),
        *("[temperature: 0.5]", "[seed: 7]", '[stop: ["a", "b"]]'),
        *("[temperature: 0.5]", "[max_tokens: 5]", "[seed: 7]", '[stop: ["a", "b"]]'),
        *("[temperature: 0.5]", "[temperature: the server's]", "[max_tokens: 9]"),
    ]


class _Listing(JsonHandler):
    def do_GET(self) -> None:
        roots = {"org/a": "org/a", "b": "org/b", "a": "org/a", "small": "org/a", "c": None}
        rows = [{"id": name, "root": root} for name, root in roots.items()]
        self.say(200, {"object": "list", "data": rows})


def test_the_names_of_one_model_stand_in_a_line() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Listing) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        said = chat(f"http://127.0.0.1:{http.server_port}", "/model\n/model small\n/model x\n")
        http.shutdown()
        thread.join()
    lines = ["* org/a, a, small", "  b", "  c"]
    assert said.stderr.splitlines() == [
        *(lines * 2),
        "error: the server has no x",
        "hint: it has org/a, a, small, b, c",
    ]


SEVERAL = {
    "a": (False, "a"),
    "a \\": (True, "a \\"),
    '"""': (True, '"""'),
    '"""a': (True, '"""a'),
    '"""a\nb"""': (False, "a\nb"),
    '"""\na"""b"""c': (True, '"""\na"""b"""c'),
    '"""\nx = """b"""\n"""': (False, 'x = """b"""'),
    '"""Docs."""\nimport x': (False, '"""Docs."""\nimport x'),
    '"""Docs."""\nx = """b"""': (False, '"""Docs."""\nx = """b"""'),
    '""""""': (False, ""),
    '""" """': (False, " "),
}


@pytest.mark.parametrize(("typed", "expected"), SEVERAL.items(), ids=repr)
def test_quotes_and_backslashes_say_where_a_message_ends(
    typed: str, expected: tuple[bool, str]
) -> None:
    assert (is_open(typed), message_of(typed)) == expected


def test_a_message_of_several_lines_may_come_from_a_pipe(server_url: str) -> None:
    said = chat(server_url, 'a\\\nb\n"""c\n\n  d"""\n"""\ne\n"""\nrepeat\n"""never closed')
    assert sent(said)[0][0::2] == ["a\nb", "c\n\n  d", "e", "repeat"]
    assert "error" not in said.stderr


def test_standard_input_stands_behind_the_first_question(server_url: str) -> None:
    said = chat(server_url, "", "--once", "repeat")
    assert sent(said) == [["repeat"]]
    said = chat(server_url, "a\nb \u20ac\n", "--once", "count", "--once", "repeat")
    assert sent(said) == [["count\n\na\nb \u20ac", "It is Paris.", "repeat"]]
    said = chat(server_url, "x" * (16 * 1024 * 1024 + 1), "--once", "count")
    assert said.exit_code == 2
    assert said.stderr.startswith("error: standard input is longer than 16 MiB\nhint: ")


def test_a_pipe_that_is_silent_is_told_about(server_url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "omlx_server", "chat", "--url", server_url, "--once", "repeat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    ) as process:
        assert process.stderr
        note = process.stderr.readline()
        assert note == "[waiting for standard input; with </dev/null there is none]\n"
        said, _ = process.communicate("log", timeout=60)
    assert "It is Paris." in said and process.returncode == 0


def test_one_question_loads_nothing_of_a_terminal(server_url: str) -> None:
    loaded = imported_by("chat", "--url", server_url, "--once", "hello")
    assert not loaded & {"prompt_toolkit", "markdown_it", "mlx", "numpy"}


def test_the_history_is_the_users_own_and_bounded(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / ".local/state/omlx_server/chat_history"
    assert history_file() == path and path.stat().st_size == 0
    path.write_bytes(b"".join(b"\n# 2026\n+%d\n" % number for number in range(100_000)))
    history_file()
    path.chmod(0o644)
    history_file()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = path.read_bytes()
    assert kept.startswith(b"\n# 2026\n+") and kept.endswith(b"+99999\n")
    assert 400_000 < len(kept) <= 1 << 19
    (home / ".local").rename(home / "elsewhere")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "elsewhere/state/omlx_server/chat_history"))
    with pytest.raises(OmlxError, match="no history is kept"):
        history_file()
