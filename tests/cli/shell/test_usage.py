"""What is said of a command line that is wrong: of numbers in our own words, of the rest in those
of typer, and with --json all of it as one object."""

import json
import re
import shlex
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner, Result

from omlx_server import settings
from omlx_server.cli.app import app
from omlx_server.cli.shell import usage
from omlx_server.cli.shell.usage import OPTIONS_OF_OTHERS, Root
from omlx_server.settings.override_keys import find_override, is_override
from tests.cli.program import HEAVY, commands, imported_by, program

runner = CliRunner()
AT_LEAST_1 = "--max-tokens: {} is not a whole number of at least 1"
LINES = "--lines: {} is not a whole number from 0 to 1000000"
WARMTH = "--temperature: {} is not a number of at least 0"


TAKES_NUMBERS = typer.Typer(cls=Root, rich_markup_mode=None)


@TAKES_NUMBERS.command()
def go(
    count: Annotated[int, typer.Argument(metavar="COUNT")] = 1,
    port: Annotated[int, typer.Option("-p", "--port", min=0, max=65535)] = 0,
    most: Annotated[float, typer.Option(max=1)] = 1,
    any_: Annotated[float, typer.Option("--any")] = 1,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Numbers of every kind."""


@TAKES_NUMBERS.command()
def other() -> None:
    """So that the name of the first has to be said."""


def invoke(what: typer.Typer, line: str) -> Result:
    return runner.invoke(what, shlex.split(line), prog_name="omlx-server")


def omlx(line: str) -> Result:
    return invoke(app, line)


def said_of(result: Result, stream: str = "stdout") -> tuple[str, str | None]:
    """Message and hint of the one object."""
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    assert (result.exit_code, getattr(result, other)) == (2, "")
    said = json.loads(getattr(result, stream))
    assert list(said) == ["error"]
    assert list(said["error"]) == ["message", "hint"]
    return said["error"]["message"], said["error"]["hint"]


# --- Numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("chat --max-tokens x", AT_LEAST_1.format("'x'")),
        ("chat --max-tokens 0", AT_LEAST_1.format("0")),
        ("chat --max-tokens 1.5", AT_LEAST_1.format("'1.5'")),
        ("chat --max-tokens ''", AT_LEAST_1.format("''")),
        ("chat --max-tokens 'a is not b'", AT_LEAST_1.format("'a is not b'")),
        ("chat --temperature warm", WARMTH.format("'warm'")),
        ("chat --temperature -1", WARMTH.format("-1")),
        ("chat --temperature=-0.5", WARMTH.format("-0.5")),
        ("service logs --lines x", LINES.format("'x'")),
        ("service logs -n -5", LINES.format("-5")),
        ("service logs -n 1000001", LINES.format("1000001")),
    ],
)
def test_a_wrong_number_is_two_lines(line: str, message: str) -> None:
    command = "chat" if line.startswith("chat") else "service logs"
    result = omlx(line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"error: {message}",
        f"hint: see `omlx-server {command} --help`",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--port x", "--port: 'x' is not a whole number from 0 to 65535"),
        ("-p 65536", "--port: 65536 is not a whole number from 0 to 65535"),
        ("--most 2", "--most: 2 is not a number of at most 1"),
        ("--most 1.5", "--most: 1.5 is not a number of at most 1"),
        ("--any few", "--any: 'few' is not a number"),
        ("few", "COUNT: 'few' is not a whole number"),
    ],
)
def test_numbers_with_other_bounds_and_arguments(words: str, message: str) -> None:
    result = invoke(TAKES_NUMBERS, f"go {words}")
    assert (result.exit_code, result.stdout) == (2, "")
    hint = "see `omlx-server go --help`"
    assert result.stderr == f"error: {message}\nhint: {hint}\n"
    assert invoke(TAKES_NUMBERS, "go -p 65535 --most 1 --any -3 7").exit_code == 0


def test_the_real_program_says_the_same() -> None:
    done = program("service", "logs", "-n", "many")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {LINES.format(repr('many'))}\nhint: see `omlx-server service logs --help`\n"
    )


def test_what_is_refused_imports_no_more_than_the_help() -> None:
    assert not imported_by("service", "logs", "-n", "x", code=2) & (HEAVY | {"msgspec"})


# --- JSON ----------------------------------------------------------------------------------------

WRONG = [
    ("sevre", "No such command 'sevre'. Did you mean 'serve', 'service'?", ""),
    ("config foo", "No such command 'foo'.", " config"),
    ("--jsom", "No such option: --jsom", ""),
    ("list --sett x", "No such option: --sett (Possible options: --set)", " list"),
    ("list more", "Got unexpected extra argument(s) (more)", " list"),
    ("show", "Missing argument 'NAME'.", " show"),
    ("cache export", "Missing option '--output' / '-o'.", " cache export"),
    ("cache stats --dir", "Option '--dir' requires an argument.", None),
]


@pytest.mark.parametrize(("line", "message", "command"), WRONG)
def test_with_json_a_wrong_command_line_is_one_object(
    line: str, message: str, command: str | None
) -> None:
    words = line.split()
    # What an option lacks must not be the word itself.
    asking = [*words[:-1], "--json", words[-1]] if command is None else [*words, "--json"]
    hint = None if command is None else f"see `omlx-server{command} --help`"
    assert said_of(omlx(shlex.join(asking))) == (message, hint)


@pytest.mark.parametrize(("line", "message", "command"), WRONG)
def test_without_json_it_is_as_typer_says_it(line: str, message: str, command: str | None) -> None:
    result = omlx(line)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert lines[-1] == f"Error: {message}"
    if command is not None:
        assert lines[0].startswith(f"Usage: omlx-server{command} ")
        assert lines[1] == f"Try 'omlx-server{command} -h' for help."


def test_a_wrong_number_is_in_the_object_in_the_same_words() -> None:
    lines = invoke(TAKES_NUMBERS, "go --port x").stderr.splitlines()
    message, hint = said_of(invoke(TAKES_NUMBERS, "go --port x --json"))
    assert lines == [f"error: {message}", f"hint: {hint}"]


def test_json_may_stand_before_the_command() -> None:
    assert said_of(omlx("--json list"))[0].startswith("No such option: --json")


@pytest.mark.parametrize("line", ["chat --once hi -t -- --json", "list --json=1"])
def test_only_the_word_itself_asks_for_json(line: str) -> None:
    result = omlx(line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "\nError: " in f"\n{result.stderr}"


@pytest.mark.parametrize("out", ["-o -", "-o-", "--output -", "--output=-"])
def test_where_stdout_is_the_archive_it_stands_on_stderr(out: str) -> None:
    assert said_of(omlx(f"cache export {out} --json --foo"), "stderr")[0].startswith("No such")


@pytest.mark.parametrize("out", ["-o x", "-o ./-", "--output=-x"])
def test_elsewhere_it_stands_on_stdout(out: str) -> None:
    assert said_of(omlx(f"cache export {out} --json --foo"))[0].startswith("No such")


def test_the_real_program_says_it_on_stdout() -> None:
    done = program("show", "--json")
    assert (done.returncode, done.stderr) == (2, "")
    assert json.loads(done.stdout)["error"]["message"] == "Missing argument 'NAME'."


# --- Help, and commands of other programs --------------------------------------------------------


@pytest.mark.parametrize("line", ["", "serve", "config", "config get"])
def test_help_of_a_command_is_asked_for_in_two_ways(line: str) -> None:
    asked = omlx(f"help {line}")
    assert (asked.exit_code, asked.output) == (0, omlx(f"{line} --help").output)
    assert asked.output.startswith(f"Usage: omlx-server {line}".rstrip())


def test_help_of_no_command_is_an_error() -> None:
    found = omlx("help nothing")
    assert found.exit_code == 2 and "No such command 'nothing'" in found.output


@pytest.mark.parametrize("word", usage.COMMANDS_OF_OTHERS)
def test_a_command_of_another_program_is_answered_with_ours(word: str) -> None:
    found = omlx(f"{word} something --else")
    assert found.exit_code == 2
    (line,) = [one for one in found.output.splitlines() if one.startswith("Error:")]
    assert line.startswith(f"Error: No such command '{word}'. Did you mean `")
    assert line.endswith("?") and "`omlx-server" in line
    message, _ = said_of(omlx(f"{word} --json"))
    assert message == line.removeprefix("Error: ")


def test_what_is_meant_by_other_words_is_there() -> None:
    known = {name for name, _ in commands()}
    lines = " ".join(usage.COMMANDS_OF_OTHERS.values())
    for words in re.findall(r"`omlx-server ([a-z ]+)", lines):
        assert words.strip() in known, words
    assert not known & usage.COMMANDS_OF_OTHERS.keys()


VALUES = {"--model": "x", "-ngl": "99", "--max-model-len": "4096", "--lora-modules": "a=b"}


@pytest.mark.parametrize("option", OPTIONS_OF_OTHERS)
def test_an_option_of_another_program_is_answered_with_ours(option: str) -> None:
    answer = OPTIONS_OF_OTHERS[option].format(command="serve")
    for joined in " =":
        found = omlx(f"serve {option}{joined}{VALUES.get(option, '1')}")
        assert found.exit_code == 2
        assert found.stderr.splitlines()[-1] == f"Error: No such option: {option}. {answer}."


def test_what_the_answers_to_options_name_is_there() -> None:
    told, known = " ".join(OPTIONS_OF_OTHERS.values()), dict(commands())
    keys = re.findall(r"\b(?:models\.overrides\.MODEL|[a-z]+)\.[a-z_]+\b", told)
    assert len(set(keys)) == 6
    for key in keys:
        plain = key.replace("MODEL", "org/name")
        assert find_override(plain) if is_override(plain) else key in settings.KEYS, key
    assert "OMLX_AUTH__API_KEYS" in told and "auth.api_keys" in keys
    options = {word for one in known["serve"].params for word in one.opts}
    assert set(re.findall(r"`(--[a-z-]+)", told)) <= options
    for words in re.findall(r"`omlx-server ([a-z ]+?) [^a-z]", told):
        assert words in {*known, "search"}, words


def test_other_commands_and_own_options_keep_the_words_of_typer() -> None:
    for line, words in (
        ("list --model x", "No such option: --model (Possible options: --help)"),
        ("chat --api-key", "Option '--api-key' requires an argument."),
        ("serve --kv-bit 1 -- -c", "No such option: --kv-bit (Possible options: --kv-bits)"),
    ):
        assert omlx(line).stderr.splitlines()[-1] == f"Error: {words}"
    message, hint = said_of(omlx("up --ctx-size=4 --json"))
    assert "models.overrides" in message and hint == "see `omlx-server up --help`"


def test_help_is_no_error(home: Path) -> None:
    """Nor is what a command itself refuses said twice."""
    assert omlx("list --json --help").exit_code == 0
    assert "Usage: omlx-server config" in omlx("config").stderr
    assert said_of(omlx("show nothing --json"))[0] == "There is no model 'nothing' here"
