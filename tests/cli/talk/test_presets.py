"""`chat` with the presets of a model: from the command line, and within the conversation."""

import re
import threading
from http.server import ThreadingHTTPServer

from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from tests.api.harness import ServerProcess
from tests.cli.json_handler import JsonHandler

runner = CliRunner()
GREEDY = ("--temperature", "0")
"""Others may end before they are cut."""
TOLD_NOTHING = "hint: the server tells nothing of presets\n"


def chat(url: str, *arguments: str, stdin: str = "") -> Result:
    return runner.invoke(app, ["chat", "--url", url, *arguments], input=stdin)


def cuts(result: Result) -> list[int]:
    """After how many tokens the answers were cut, one after the other."""
    return [int(count) for count in re.findall(r"\[cut at (\d+) ", result.stderr)]


def test_a_preset_counts_for_every_question(thinker: ServerProcess) -> None:
    brief = (*GREEDY, "--preset", "brief")
    assert cuts(chat(thinker.url, *brief, "--once", "Hi", "--once", "Yo")) == [3, 3]
    said = chat(thinker.url, *brief, "--max-tokens", "5", "--once", "Hi")
    assert cuts(said) == [5], "what the command says wins"


def test_presets_are_listed_and_chosen_within_the_conversation(thinker: ServerProcess) -> None:
    lines = ("/preset", "/preset long", "Hi", "/preset brief", "Hi", "/preset none", "Hi")
    said = chat(thinker.url, "--max-tokens", "40", stdin="\n".join([*lines[:2], "/preset -\n"]))
    assert said.stderr.splitlines() == [
        *("  brief", "  long"),
        *("  brief", "* long"),
        *("  brief", "  long"),
    ]
    said = chat(thinker.url, *GREEDY, stdin="\n".join(lines))
    assert cuts(said) == [30, 3, 3]
    assert "error: thinker has no preset none\nhint: it has brief, long\n" in said.stderr


def test_without_a_preset_of_that_name_nothing_is_asked(
    thinker: ServerProcess, server_url: str
) -> None:
    said = chat(thinker.url, "--preset", "breif", "--once", "Hi")
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr == "error: thinker has no preset breif\nhint: it has brief, long\n"
    said = chat(server_url, "--preset", "brief", "--once", "Hi")
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr == f"error: starter has no preset brief\n{TOLD_NOTHING}"
    assert chat(server_url, stdin="/preset\n").stderr == "[the server tells nothing of presets]\n"


class _Listing(JsonHandler):
    def do_GET(self) -> None:
        presets = {"a": ["x", "y"], "b": ["y"], "c": []}
        rows = [{"id": name, "presets": own} for name, own in presets.items()]
        self.say(200, {"object": "list", "data": rows})


def test_another_model_keeps_a_preset_that_it_has() -> None:
    lines = ("/preset", "/model b", "/model c", "/preset", "/model a", "/preset")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Listing) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        url = f"http://127.0.0.1:{http.server_port}"
        said = chat(url, "--preset", "y", stdin="\n".join(lines))
        http.shutdown()
        thread.join()
    assert said.stderr.splitlines() == [
        *("  x", "* y"),
        *("  a", "* b", "  c"),
        "[c has no preset y; the conversation goes on without]",
        *("  a", "  b", "* c"),
        "[c has no presets]",
        *("* a", "  b", "  c"),
        *("  x", "  y"),
    ]
