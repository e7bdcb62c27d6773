"""Every block of code in README.md and docs/ works: commands run, settings load, programs end well.

A command that cannot run here stands in a table of `commands` with its reason; all others run.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from omlx_server.settings.layers import check_text
from tests.docs import scripts
from tests.docs.blocks import Block, all_blocks, blocks_of
from tests.docs.commands import JUDGED, JUDGED_PAGES, LEFT, RUN_AS, Command, commands_of, judge
from tests.docs.conftest import NAME, STAND_FOR_IT, Documented

BLOCKS = all_blocks()
SHELLS = ("sh", "bash", "console")
TESTED = (*SHELLS, "toml", "python", "json", "yaml", "text")
ADDRESS = re.compile(r"http://[\w.-]+:8000")
SECONDS = 300


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


SAID = [command for block in of(*SHELLS) for command in commands_of(block)]
# Once each, and where it is run if it is anywhere.
RUN_LAST = sorted(SAID, key=lambda command: command.block.page not in JUDGED_PAGES)
COMMANDS = list({command.key: command for command in RUN_LAST if command.of(LEFT) is None}.values())


def test_all_blocks_are_of_a_kind_that_is_tested() -> None:
    assert len(BLOCKS) > 50
    assert {str(block): block.language for block in BLOCKS if block.language not in TESTED} == {}


# --- The shell -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command(command: Command, request: pytest.FixtureRequest) -> None:
    if command.words[0].startswith("scripts/"):
        scripts.look_at(command)
    elif command.is_judged:
        judge(command.words[1:], command.environ)
    else:
        documented: Documented = request.getfixturevalue("documented")
        home: Path = request.getfixturevalue("home")
        run(command, documented.server.url, home, request.getfixturevalue("environ"))


def run(command: Command, url: str, home: Path, environ: dict[str, str]) -> None:
    text = substituted(command.rewritten(), url)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=home,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def substituted(text: str, url: str) -> str:
    """With the address of the server that is here, and its model."""
    text = ADDRESS.sub(url, text)
    for name in STAND_FOR_IT:
        text = text.replace(name, NAME)
    return text


def test_the_tables_hold_nothing_that_no_page_says() -> None:
    for table in (JUDGED, LEFT, RUN_AS):
        for name in table:
            assert any(command.begins_with(name) for command in SAID), name


def test_the_stand_in_for_curl_does_as_curl_does(documented: Documented, home: Path) -> None:
    program = str(Path(__file__).parent / "bin" / "curl")
    pins = f"{documented.server.url}/v1/cache/pins"
    kind = ("-H", "Content-Type: application/json")

    def ask(*words: str) -> tuple[int, bytes]:
        done = subprocess.run([sys.executable, program, *words], cwd=home, capture_output=True)
        return done.returncode, done.stdout

    code, body = ask(pins)
    assert code == 0 and "data" in json.loads(body)
    code, body = ask(pins.removesuffix("s"), *kind, "-d", "@request.json")
    assert code == 0 and json.loads(body)["id"]
    assert ask("-X", "DELETE", f"{pins}/unknown")[0] == 22
    assert ask("-o", "said.json", pins) == (0, b"")
    assert json.loads((home / "said.json").read_text())["data"]


# --- Files and programs --------------------------------------------------------------------------


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_settings(block: Block) -> None:
    """A title names the file of another program."""
    tomllib.loads(block.text)
    if "title=" not in block.info:
        check_text(block.text, Path(block.page), {})


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml(block: Block) -> None:
    assert yaml.safe_load(block.text)


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python(block: Block, documented: Documented, home: Path, environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", substituted(block.text, documented.server.url)],
        cwd=home,
        env=environ,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]


# --- The tests themselves ------------------------------------------------------------------------

PAGE = """\
Text.

    omlx-server status

- item

    not code, but of the item

```sh
# a comment
A=1 curl -d '{
  "a": 1}' \\
  http://127.0.0.1:8000/  # behind it
omlx-server serve --port 1
```
"""


def test_blocks_and_commands_are_found() -> None:
    blocks = list(blocks_of(PAGE, "page.md"))
    assert [(block.line, block.language) for block in blocks] == [(3, "sh"), (9, "sh")]
    found = [command for block in blocks for command in commands_of(block)]
    assert [command.words[:2] for command in found] == [
        ("omlx-server", "status"),
        ("curl", "-d"),
        ("omlx-server", "serve"),
    ]
    assert found[1].words[-1] == "http://127.0.0.1:8000/"
    assert found[1].environ == {"A": "1"}
    assert [command.is_judged for command in found] == [False, False, True]


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        ("serve --prot 8001", {}),
        ("serve --set server.prot=8001", {}),
        ("serve --set server.port=x", {}),
        ("serve", {"OMLX_SERVER__PROT": "8001"}),
        ("service instal", {}),
        ("frobnicate", {}),
    ],
)
def test_what_the_program_would_refuse_is_seen(words: str, environ: dict[str, str]) -> None:
    with pytest.raises((Exception, SystemExit)):
        judge(tuple(words.split()), environ)
