"""`chat` streams over real HTTP, remembers its turns, and explains failures in one line."""

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.cli.server_client.http import NoAnswer, local_url, own_server, server_at
from omlx_server.cli.shell.screen import Screen
from omlx_server.cli.talk.client import ChatClient, Stopped, TimedAnswer, closing_lines
from omlx_server.cli.talk.conversation import Conversation
from omlx_server.cli.talk.slash import completions
from omlx_server.cli.talk.typed import read_typed
from omlx_server.process.running import announcing
from omlx_server.settings import load
from tests.cli.conftest import FAKE_SERVER
from tests.cli.program import ROOT

runner = CliRunner()


def chat(url: str, *arguments: str, stdin: str = "") -> Result:
    return runner.invoke(app, ["chat", "--url", url, *arguments], input=stdin)


def test_one_prompt_is_answered_with_its_speed(server_url: str) -> None:
    result = chat(server_url, "--once", "hello")
    assert result.exit_code == 0
    assert result.stdout == "It is Paris.\n"
    assert result.stderr.startswith("[first token after 0.")
    assert result.stderr.endswith("12 tokens, 0 of 10 prompt tokens cached]\n")


def test_several_prompts_are_turns_of_one_talk(server_url: str) -> None:
    assert chat(server_url, "--once", "count", "--once", "count").stdout == "1\n3\n"


def test_the_talk_reads_its_turns_and_forgets_on_demand(server_url: str) -> None:
    for anew in ("/new", "/clear"):
        said = chat(server_url, stdin=f"count\n\ncount\n{anew}\ncount\n/exit\ncount\n")
        assert said.stdout == "1\n3\n1\n"


@pytest.mark.parametrize("end", ["/exit", "/quit", "/bye"])
def test_all_that_people_end_a_talk_with_ends_it(server_url: str, end: str) -> None:
    result = chat(server_url, stdin=f"count\n{end}\ncount\n")
    assert (result.exit_code, result.stdout) == (0, "1\n")


def test_what_could_be_said_is_listed_on_demand(server_url: str) -> None:
    for line in ("/help", "/?"):
        result = chat(server_url, stdin=f"{line}\n")
        assert result.stdout == ""
        assert all(name in result.stderr for name in completions())
        assert max(map(len, result.stderr.splitlines())) < 80


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/what", "/what: no such command\nhint: /help lists all\n"),
        ("/", "/: no such command\nhint: /help lists all\n"),
        ("/Exit", "/Exit: no such command\nhint: did you mean /exit? /help lists all\n"),
        ("/new!", "/new!: no such command\nhint: did you mean /new? /help lists all\n"),
        ("/images of cats?", "/images: no such command\nhint: did you mean /image? "),
        ("/savee x.json", "/savee: no such command\nhint: did you mean /save? "),
        ("/set system hi", "system: no such parameter\nhint: /system TEXT sets the system message"),
        ("/set temprature 1", "temprature: no such parameter\nhint: did you mean temperature?\n"),
        ("/set parameter x", "x: no such parameter\nhint: there are temperature, top_p, top_k, "),
        ("/set temperature hot", 'temperature: expected a number from 0 to 2, not "hot"\n'),
        ("/set top_p 1.5", 'top_p: expected a number above 0 up to 1, not "1.5"\n'),
        ("/show info", "/show: no such command\nhint: `omlx-server show NAME` tells all of a "),
        ("/exit now", "/exit takes no argument\nhint: /help lists all\n"),
        ("/? shortcuts", "/? takes no argument\nhint: /help lists all\n"),
        (f"/{'x' * 300} y", f"/{'x' * 300}: no such command\n"),
    ],
)
def test_a_wrong_command_is_no_text_for_the_model(server_url: str, line: str, says: str) -> None:
    result = chat(server_url, stdin=f"{line}\ncount\n")
    assert result.stderr.startswith(f"error: {says}")
    assert result.stdout == "1\n"


PATHS = ["/usr/bin", "/usr/bin is what?", "/tmp", "/tmp is what?"]


@pytest.mark.parametrize("text", [*PATHS, "// a comment", "/x-1 y", '"""/api a\nb"""'])
def test_a_path_and_other_texts_with_a_slash_reach_the_model(server_url: str, text: str) -> None:
    result = chat(server_url, stdin=f"{text}\ncount\n")
    assert "error" not in result.stderr
    assert result.stdout == "It is Paris.\n3\n"


def test_a_turn_that_failed_is_not_remembered(server_url: str) -> None:
    result = chat(server_url, stdin="refuse\ncrash\ncut\ncount\n")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[:-1] == [
        "error: the model refuses (HTTP 400)",
        "error: the engine fell over",
        "error: the server broke off in the middle of the answer",
    ]
    # What came of an answer has its own line, so that an error does not stand in the middle of one.
    assert result.stdout.splitlines() == ["It is Paris.", "It is Paris.", "1"]


def test_an_end_that_the_server_chose_is_marked(server_url: str) -> None:
    said = chat(server_url, "--once", "filter")
    assert said.stdout == "It is Paris.\n"
    assert said.stderr.startswith("[ended by the server: content_filter]\n")


def test_counts_and_ends_that_are_none_do_no_harm(server_url: str) -> None:
    said = chat(server_url, "--once", "odd")
    assert (said.exit_code, said.stdout) == (0, "It is Paris.\n")
    assert said.stderr.startswith("[ended by the server: 7]\n")
    assert said.stderr.endswith(" 0 tokens, 0 of 0 prompt tokens cached]\n")


def test_line_separators_inside_an_answer_do_not_cut_events(server_url: str) -> None:
    # U+0085 is a control character, and left out.
    assert chat(server_url, "--once", "lines").stdout == "one\u2028twothree\n"


def test_what_a_terminal_or_a_request_can_not_encode_ends_nothing(server_url: str) -> None:
    latin = CliRunner(charset="latin-1").invoke(app, ["chat", "--url", server_url, "--once=lines"])
    assert latin.stdout == "one\\u2028twothree\n"
    (request,) = requests(server_url, "--system", "\udcff", stdin="repeat\n")
    assert request["messages"][0]["content"] == "?"
    said = runner.invoke(app, ["chat", "--url", server_url], input=b'\xff\n""" """\nrepeat\n')
    assert (said.exit_code, '"\\ufffd"' in said.stdout) == (0, True)


@pytest.mark.parametrize(
    ("closed", "once", "out"),
    [("<&-", ["--once", "hi"], "It is Paris.\n"), (">&-", [], ""), ("<&- >&- 2>&-", [], "")],
)
def test_standard_streams_may_be_closed(
    closed: str, once: list[str], out: str, server_url: str
) -> None:
    done = _chat_with(closed, once, server_url)
    assert (done.returncode, done.stdout) == (0, out), done.stderr
    assert "error" not in done.stderr


def test_an_answer_that_would_go_nowhere_is_not_asked_for(server_url: str) -> None:
    done = _chat_with(">&-", ["--once", "hi"], server_url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: stdout is closed")


def _chat_with(closed: str, once: list[str], url: str) -> subprocess.CompletedProcess[str]:
    """`chat` with the streams that `closed` closes, in a shell's words."""
    words = [sys.executable, "-m", "omlx_server", "chat", "--url", url, *once]
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *words],
        env={"PYTHONPATH": str(ROOT)},
        input="hi\n",
        capture_output=True,
        text=True,
    )


def test_a_prompt_is_no_part_of_what_is_piped_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("a\\\nb\n"))
    assert (read_typed("> "), read_typed("> ")) == ("a\nb", None)
    assert capsys.readouterr() == ("", "> . > \n")


class _Interrupted(Screen):
    """Ctrl-C is pressed at the first piece, and once more while the screen ends."""

    def show_text(self, piece: str) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        raise KeyboardInterrupt


class _Broken(Screen):
    def show_text(self, piece: str) -> None:
        raise ValueError("a bug of ours")


def test_a_stopped_answer_is_kept_however_often_ctrl_c_is_pressed(server_url: str) -> None:
    with ChatClient(server_at(server_url, "")) as client:
        talk = Conversation(client, "starter", "", {}, _Interrupted)
        with pytest.raises(Stopped) as stopped:
            talk.say("hello")
    assert stopped.value.text == talk.messages[-1]["content"] == "I"


def test_a_bug_of_the_screen_is_no_fault_of_the_server(server_url: str) -> None:
    question = [{"role": "user", "content": "hello"}]
    with (
        ChatClient(server_at(server_url, "")) as client,
        pytest.raises(ValueError, match="of ours"),
    ):
        client.ask("starter", question, _Broken())


def requests(url: str, *arguments: str, stdin: str) -> list[dict[str, Any]]:
    """What the server was sent, turn by turn."""
    lines = chat(url, *arguments, stdin=stdin).stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_what_is_said_of_sampling_goes_with_every_request(server_url: str) -> None:
    wanted = ("--max-tokens", "7", "--temperature", "0.25")
    for request in requests(server_url, *wanted, stdin="repeat\nrepeat\n"):
        assert (request["max_tokens"], request["temperature"]) == (7, 0.25)
        assert isinstance(request["max_tokens"], int)
    (request,) = requests(server_url, "--temperature", "0", stdin="repeat\n")
    assert request["temperature"] == 0
    (request,) = requests(server_url, stdin="repeat\n")
    assert set(request) == {"model", "messages", "stream", "stream_options"}


def test_the_system_message_stays_when_the_talk_is_forgotten(server_url: str) -> None:
    sent = requests(server_url, "--system", "Be brief.", stdin="repeat\nrepeat\n/new\nrepeat\n")
    first = {"role": "system", "content": "Be brief."}
    assert [request["messages"][0] for request in sent] == [first, first, first]
    assert [len(request["messages"]) for request in sent] == [2, 4, 2]


@pytest.mark.parametrize(
    "wrong",
    ["--max-tokens 0", "--max-tokens x", "--temperature -1", "--temperature inf"],
)
def test_what_is_no_number_of_tokens_or_temperature_is_not_sent(
    server_url: str, wrong: str
) -> None:
    result = chat(server_url, "--once", "hello", *wrong.split())
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("refuse", "the model refuses (HTTP 400)"),
        ("crash", "the engine fell over"),
        ("html", "does not answer as an OpenAI server does"),
    ],
)
def test_with_once_a_failure_is_code_1(server_url: str, prompt: str, message: str) -> None:
    result = chat(server_url, "--once", prompt)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_a_server_it_says_how_to_start_one() -> None:
    result = chat("http://127.0.0.1:9", "--once", "hello")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no server answers at http://127.0.0.1:9\nhint: start")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://a:b"])
def test_what_is_not_a_url_is_a_one_line_error(url: str) -> None:
    result = chat(url, "--once", "hello")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert chat(server_url, "--once", "hello").exit_code == 0


def test_a_key_is_asked_for_and_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEY", "secret")
    monkeypatch.setenv("FAKE_ANNOUNCES", "1")
    with subprocess.Popen(
        [sys.executable, str(FAKE_SERVER)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout
        url = server.stdout.readline().strip()
        refused = chat(url, "--once", "hello")
        allowed = chat(url, "--once", "hello", "--api-key", "secret")
        # A key of our own config belongs to our own server, not to any URL.
        monkeypatch.setenv("OMLX_AUTH__API_KEYS", "secret")
        not_leaked = chat(url, "--once", "hello")
        monkeypatch.setenv("OMLX_SERVER__PORT", url.rpartition(":")[2])
        own = runner.invoke(app, ["chat", "--once", "hello"])
        server.terminate()
    assert refused.exit_code == 2
    assert "wants an API key" in refused.stderr
    assert allowed.exit_code == 0
    assert not_leaked.exit_code == 2
    assert own.exit_code == 0


def test_the_own_server_is_found_by_the_settings(home: Path) -> None:
    def url(**overrides: str) -> str:
        return local_url(
            load(None, {f"server.{key}": overrides[key] for key in overrides}).settings
        )

    assert url() == "http://127.0.0.1:8000"
    assert url(port="9000", host="::1") == "http://[::1]:9000"
    keyed = load(None, {"server.host": "0.0.0.0", "auth.api_keys": "a,b"}).settings
    assert local_url(keyed) == "http://127.0.0.1:8000"
    assert own_server(keyed).key == ""
    with announcing(url()):
        assert own_server(keyed).key == "a"
    assert own_server(load().settings).key == ""
    result = runner.invoke(app, ["chat"], env={"OMLX_SERVER__PORT": "0"})
    assert (result.exit_code, "give --url" in result.stderr) == (2, True)


def test_readiness_is_false_without_a_server(server_url: str) -> None:
    there, nowhere = server_at(f"{server_url}/v1/", ""), server_at("http://127.0.0.1:9", "")
    with ChatClient(nowhere) as nobody, ChatClient(there) as server:
        assert not nobody.is_ready()
        assert server.is_ready()
        assert server.models() == ["starter"]
        with pytest.raises(NoAnswer):
            nobody.models()


def test_speed_is_of_the_decode_alone() -> None:
    answer = TimedAnswer("", 2.0, 4.0, prompt_tokens=1, completion_tokens=11, cached_tokens=0)
    assert answer.tokens_per_second == 5.0
    assert TimedAnswer("", 2.0, 2.0, 1, 1, 0).tokens_per_second == 0.0
    assert TimedAnswer("", 2.0, 4.0, 1, 0, 0).tokens_per_second == 0.0
    assert TimedAnswer("", 2.0, 4.0, 1, 8, 0).tokens_per_second == 0.0  # too few to tell


def test_an_answer_at_one_moment_has_no_speed_to_tell() -> None:
    assert closing_lines(TimedAnswer("", 2.0, 2.0, 7, 1, 0)) == [
        "[first token after 2.00 s, 1 token, 0 of 7 prompt tokens cached]"
    ]
