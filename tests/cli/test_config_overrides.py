"""`config get | set models.overrides.NAME.KEY`: one key of one model, in files of any shape."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from omlx_server import settings
from omlx_server.cli.app import app
from omlx_server.settings import edit
from tests.cli.home import CONFIG
from tests.sweeps import sweep

NAME = "org/Qwen2.5-7B"
FILES = {
    "empty": "",
    "no end of line": "[server]\nport = 1 # here",
    "other sections": '[server]\nport = 9000 # mine\n\n[models]\ndefault = "x" # that\n',
    "lines of Windows": '# first\r\n[models]\r\ndefault = "x"\r\n',
    "a heading": f'[models]\n[models.overrides."{NAME}"] # the model\nttl = 5 # short\n# end\n',
    "another model": '[models.overrides.a]\nttl = 5 # of a\n\n[logging]\nlevel = "debug" # loud\n',
    "tables in tables": f'[models.overrides."{NAME}".kv_cache]\nbits = 8 # many\n',
    "headings apart": f'[models.overrides."{NAME}".kv_cache]\nbits = 8\n[cache]\n'
    f'enabled = true # yes\n[models.overrides."{NAME}".sampling]\ntop_k = 3\n',
    "in one line": f'models.overrides = {{ "{NAME}" = {{ ttl = 5 }}, a = {{ ttl = 1 }} }} # all\n',
    "a line of models": "models = { default = 'x' } # this\n",
    "a line of overrides": "[models]\noverrides = { a = { pin = true } } # that\n",
    "dots": "models.default = 'x' # dots\n[cache]\nenabled = false # off\n",
    "dots in dots": f"models.overrides.'{NAME}'.kv_cache.bits = 8 # dots\n",
}
KEYS: dict[str, tuple[str, Any]] = {
    "context_length": ("16384", 16384),
    "ttl": ("0.5", 0.5),
    "pin": ("yes", True),
    "tool_parser": ("qwen3_coder", "qwen3_coder"),
    "sampling": ('{"top_p": 0.5, "top_k": 7}', {"top_p": 0.5, "top_k": 7}),
    "sampling.temperature": ("1", 1),
    "chat_template_kwargs": ('{"a": true}', {"a": True}),
    "chat_template_kwargs.enable_thinking": ("false", False),
    "chat_template_kwargs.with.dots": ("no", "no"),
    "chat_template_kwargs.effort": ("7", 7),
    "kv_cache.scheme": ("affine", "affine"),
    "kv_cache.bits": ("6", 6),
    "kv_cache.group_size": ("32", 32),
    "speculation.mode": ("draft", "draft"),
    "speculation.draft_model": ("", ""),
    "system": ("Be brief, please.", "Be brief, please."),
    "sampling.stop": ('["a,b", "c"]', ["a,b", "c"]),
    "presets.coder.temperature": ("0.2", 0.2),
    "presets.coder": ('{"seed": 3}', {"seed": 3}),
}
runner = CliRunner()


def config(*arguments: str) -> Result:
    return runner.invoke(app, ["config", *arguments])


def refused(*arguments: str, code: int = 2) -> str:
    result = config(*arguments)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    return result.stderr


def with_key(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The oracle: what the file says after it, without TOML."""
    table = values.setdefault("models", {}).setdefault("overrides", {}).setdefault(NAME, {})
    *tables, last = parts(key)
    for name in tables:
        table = table.setdefault(name, {})
    table[last] = value
    return values


def parts(key: str) -> list[str]:
    return key.split(".", 2 if key.startswith("presets.") else 1)


@pytest.mark.parametrize(("name", "first"), sweep(FILES, range(3)))
def test_any_key_goes_into_any_file_and_out_again_and_comments_stay(
    name: str, first: int, home: Path
) -> None:
    """Each third key from one of the `first` on."""
    file, text = home / CONFIG, FILES[name]
    comments = [line.partition("#")[2].strip() for line in text.splitlines() if "#" in line]
    for key, (given, value) in list(KEYS.items())[first::3]:
        file.write_bytes(text.encode())
        result = config("set", f"models.overrides.{NAME}.{key}", given)
        assert result.exit_code == 0, (key, result.output)
        after = file.read_bytes().decode()
        assert tomllib.loads(after) == with_key(tomllib.loads(text), key, value), (key, after)
        assert all(comment in after for comment in comments), after
        assert json.loads(config("get", f"models.overrides.{NAME}.{key}", "--json").stdout) == value
        assert edit.unset_key(file, f"models.overrides.{NAME}.{key}")
        check_that_it_is_gone(key, text, file.read_bytes().decode())


def check_that_it_is_gone(key: str, before: str, after: str) -> None:
    """`after` is the text of a file after the key was set in the text `before`, and unset."""
    path = ["models", "overrides", NAME, *parts(key)]
    values = tomllib.loads(after)
    assert "{}" not in json.dumps(values.get("models", {}).get("overrides")), after
    assert without_key(values, path) == without_key(tomllib.loads(before), path), (key, after)
    others = ("# end", "# yes", "# loud", "# mine", "# first")
    assert all(comment in after for comment in others if comment in before), after


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("7", 7),
        ("-7", -7),
        ("0.5", 0.5),
        ("1.0", 1.0),
        ("007", "007"),
        ("+7", "+7"),
        ("0.50", "0.50"),
        ('"7"', "7"),
        ('"true"', "true"),
        ("true", True),
        ("True", "True"),
        ('"open', '"open'),
        (" a ", " a "),
    ],
)
def test_an_argument_of_a_template_comes_as_it_was_given(
    given: str, value: Any, home: Path
) -> None:
    key = "models.overrides.m.chat_template_kwargs.a"
    said = config("set", "--", key, given)
    assert said.exit_code == 0, said.output
    written = tomllib.loads(Path(edit.file_to_change(None)).read_text())
    found = written["models"]["overrides"]["m"]["chat_template_kwargs"]["a"]
    got = json.loads(config("get", key, "--json").stdout)
    for one in (found, got):
        assert (one, type(one)) == (value, type(value))


def without_key(values: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """The values without the key and the tables that are empty without it."""
    name, *rest = path
    if not rest or (name in values and not without_key(values[name], rest)):
        values.pop(name, None)
    return values


def test_one_after_the_other_into_one_file(home: Path) -> None:
    file = home / CONFIG
    file.write_text("# mine\n")
    expected: dict[str, Any] = {}
    for key, (given, value) in KEYS.items():
        assert config("set", f"models.overrides.{NAME}.{key}", given).exit_code == 0, key
        with_key(expected, key, value)
    assert tomllib.loads(file.read_text()) == expected
    assert file.read_text().startswith(f'# mine\n\n[models.overrides."{NAME}"]\ncontext_length = ')
    assert file.read_text().count("[models") == 1
    assert ",bits" not in file.read_text()


def test_what_is_written_is_what_a_server_would_do(home: Path) -> None:
    (home / CONFIG).write_text("")
    for key in ("context_length", "kv_cache.bits", "pin", "chat_template_kwargs.enable_thinking"):
        config("set", f"models.overrides.{NAME}.{key}", KEYS[key][0])
    overrides = settings.load().settings.overrides_of([NAME])
    assert (overrides.context_length, overrides.pin) == (16384, True)
    assert overrides.kv_cache.bits == 6
    assert overrides.chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("context_length", "many", "expected an integer from 16 to 100000000, not"),
        ("context_length", "3", "expected an integer from 16 to 100000000, not"),
        ("pin", "maybe", "expected true or false"),
        ("sampling.top_p", "0", "expected a number above 0 up to 1"),
        ("sampling", "hot", "expected a table"),
        ("sampling", '{"top": 1}', "expected a table"),
        ("kv_cache.scheme", "gguf", "expected one of none, affine, rotated, turboquant"),
        ("kv_cache.group_size", "33", "expected one of 32, 64, 128"),
        ("kv_cache.group_size", "null", "expected one of 32, 64, 128"),
        ("kv_cache.scheme", "null", "expected one of none, affine, rotated, turboquant"),
        ("kv_cache.scheme", '"affine"', "expected one of none, affine, rotated, turboquant"),
        ("kv_cache.bits", "5", "can't have 5 bits"),
        ("speculation.mode", "on", "expected one of off, auto, ngram, draft, heads"),
        ("contxt_length", "1", "did you mean models.overrides.NAME.context_length?"),
        ("sampling.top_q", "1", "did you mean models.overrides.NAME.sampling.top_"),
        ("temperature", "1", "did you mean models.overrides.NAME.sampling.temperature?"),
        ("nonsense", "1", "a KEY is one of system, reasoning_effort, "),
        ("chat_template_kwargs.", "1", "unknown key"),
        ("presets.coder.temperature", "3", "presets.coder.temperature: expected a number from 0"),
        ("presets.coder.temprature", "1", "models.overrides.NAME.presets.PRESET.temperature?"),
        ("chat_template", "none.jinja", "none.jinja can't be read: No such file"),
        ("chat_template", "config.toml", "config.toml: the chat template does not show the user's"),
    ],
)
def test_what_is_wrong_is_refused_with_the_nearest_and_the_file_stays(
    home: Path, key: str, value: str, words: str
) -> None:
    file = home / CONFIG
    file.write_text('[models.overrides.a]\nkv_cache = { scheme = "affine" }\n')
    assert words in refused("set", f"models.overrides.a.{key}", value)
    assert file.read_text() == '[models.overrides.a]\nkv_cache = { scheme = "affine" }\n'
    if "unknown key" in refused("set", f"models.overrides.a.{key}", value):
        assert words in refused("get", f"models.overrides.a.{key}")


@pytest.mark.parametrize(
    ("table", "said", "hint"),
    [
        ("tll = 3", "unknown key models.overrides.a.tll (", "NAME.ttl?"),
        ("kv_cache.bit = 4", "unknown key models.overrides.a.kv_cache.bit (", "kv_cache.bits?"),
        ("ttl = 'long'", "models.overrides.a.ttl: expected a number from 0 to", ""),
        ("sampling = { top_p = 2 }", "models.overrides.a.sampling.top_p: expected a number", ""),
        ("kv_cache = 4", "models.overrides.a.kv_cache: expected a table", ""),
    ],
)
def test_a_key_of_a_file_that_is_wrong_is_named(
    home: Path, table: str, said: str, hint: str
) -> None:
    """As everywhere, though all models together are one setting."""
    (home / CONFIG).write_text(f"[models.overrides.b]\nttl = 1\n[models.overrides.a]\n{table}\n")
    answer = refused("validate")
    assert said in answer and "config.toml)" in answer
    assert hint in answer


def test_a_template_is_taken_as_a_path_from_the_config_file(home: Path) -> None:
    file = home / "etc" / "c.toml"
    file.parent.mkdir()
    template = file.with_name("x.jinja")
    template.write_text("{{ messages[0].content }}")
    assert config(
        "set", "models.overrides.a.chat_template", "x.jinja", "--config", str(file)
    ).stdout
    assert tomllib.loads(file.read_text())["models"]["overrides"]["a"] == {
        "chat_template": "x.jinja"
    }
    assert config("validate", "--config", str(file)).exit_code == 0
    template.write_text("{{ messages[0].content }}\n{% for %}")
    said = refused("validate", "--config", str(file))
    assert f"models.overrides.a.chat_template: {template}, line 2: the chat template is" in said
    assert len(said.splitlines()) == 1


def test_get_says_what_is_not_set_and_for_whom_something_is(home: Path) -> None:
    said = refused("get", "models.overrides.a.ttl", code=1)
    assert said == "error: models.overrides.a.ttl is not set\nhint: no model has any overrides\n"
    (home / CONFIG).write_text('[models.overrides."org/b"]\nttl = 5\npin = false\n')
    assert "there are overrides of org/b" in refused("get", "models.overrides.a.ttl", code=1)
    assert "is not set" in refused("get", "models.overrides.org/b.context_length", code=1)
    assert "is not set" in refused("get", "models.overrides.org/b.sampling.top_p", code=1)
    assert config("get", "models.overrides.org/b.ttl").stdout == "5\n"
    assert config("get", "models.overrides.org/b.pin").stdout == "false\n"
    assert json.loads(config("get", "models.overrides.org/b").stdout) == {"ttl": 5, "pin": False}
    assert "hint: there are overrides of org/b\n" in refused("get", "models.overrides.org/c")
    assert "KEY, such as models.overrides.NAME.ttl" in refused("set", "models.overrides.b", "1")


def test_text_is_printed_bare_for_scripts(home: Path) -> None:
    (home / CONFIG).write_text('[models.overrides.a]\ntool_parser = "x"\nsampling.top_k = 2\n')
    assert config("get", "models.overrides.a.tool_parser").stdout == "x\n"
    assert config("get", "models.overrides.a.sampling").stdout == '{"top_k": 2}\n'


def test_it_says_when_the_environment_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / CONFIG).touch()
    monkeypatch.setenv("OMLX_MODELS__OVERRIDES", '{"a": {"ttl": 9}}')
    result = config("set", "models.overrides.a.ttl", "5")
    assert "env OMLX_MODELS__OVERRIDES wins" in result.stderr
    assert config("get", "models.overrides.a.ttl").stdout == "9\n"
