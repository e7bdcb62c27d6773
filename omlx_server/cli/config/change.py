"""`omlx-server config set` and `unset`: change one key of the config file."""

import getpass
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import typer

from omlx_server.cli.config.show import as_toml, print_warnings, value_in_force
from omlx_server.cli.shell import output, stdin
from omlx_server.cli.shell.options import check_chat_templates, load_settings
from omlx_server.cli.shell.output import say
from omlx_server.errors import ConfigError, OmlxError, UsageError, system_errors_as
from omlx_server.settings import Loaded, Settings, edit
from omlx_server.settings.layers import check_text, read_config
from omlx_server.settings.override_keys import TABLE, find_override, is_override
from omlx_server.settings.overrides import with_paths_from
from omlx_server.settings.values import SECRETS

_MOST_BYTES = 1 << 20
_EDITORS = ("nano", "vi")
_NEW_CONFIG = """\
# The settings of omlx-server that differ from their defaults. All there are, with what they do:
# `omlx-server config show --explain`.

[server]
# port = 8000
"""


def set_value(*, key: str, value: str, config: Path | None) -> int:
    file = edit.file_to_change(config)
    text = _read_value(key) if value == stdin.STDIN else value
    if is_override(key):
        check_chat_templates(_settings_of_override(key, text, file))
    change = edit.set_key(file, key, text)
    print(f"{key} = {as_toml(key, change.value)}  # {file}")
    if change.was_open:
        say(f"{file} could be read by others; now it is for its owner only (chmod 600)")
    loaded = load_settings(file)
    print_warnings(loaded)
    origin = _origin_of(key, loaded)
    if origin.startswith("env "):
        say(f"warning: {origin} wins over it")
    return 0


def unset(*, key: str, config: Path | None) -> int:
    file = edit.file_to_change(config)
    was_there = edit.unset_key(file, key)
    loaded = load_settings(config)
    in_force = _in_force_in_words(key, loaded)
    if not was_there:
        raise OmlxError(f"{file} does not set {key}", hint=f"in force is {in_force}")
    print(f"{in_force}; {file} does not set it any more")
    print_warnings(loaded)
    return 0


def _in_force_in_words(key: str, loaded: Loaded) -> str:
    try:
        value = value_in_force(key, loaded)
    except OmlxError:
        return f"{key} is not set"
    return f"{key} = {as_toml(key, value)}  # {_origin_of(key, loaded)}"


def _origin_of(key: str, loaded: Loaded) -> str:
    return loaded.origins[TABLE if is_override(key) else key]


def _settings_of_override(key: str, text: str, file: Path) -> Settings:
    """Return settings with this override of a model and no other."""
    override = find_override(key)
    table = override.read(text, f"file {file}")
    for name in reversed(override.path[3:]):  # after models, overrides and the model's name
        table = {name: table}
    tables = with_paths_from({override.model: table}, file.parent)
    return Settings.of({"models": {"overrides": tables}})


def _read_value(key: str) -> str:
    if key in SECRETS and stdin.is_terminal():
        with suppress(EOFError):
            return getpass.getpass(f"{key}: ")
        raise UsageError("nothing was given, so nothing was changed")
    data = stdin.read(_MOST_BYTES + 1)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError("what stdin gives is not UTF-8") from None
    if len(data) > _MOST_BYTES:
        raise UsageError("what stdin gives is too long for a setting")
    return text.removesuffix("\n").removesuffix("\r")


def run(*, config: Path | None) -> int:
    command = editor_command(os.environ, at_terminal=stdin.is_terminal() and sys.stdout.isatty())
    file = edit.file_to_change(config)
    before = read_config(file) if file.exists() else _NEW_CONFIG
    draft = file.with_name(f"{file.name}.draft.toml")
    edit.write_config(draft, read_config(draft) if draft.exists() else before)
    after = _edit_until_valid(draft, command)
    if after == before:
        print("Nothing has changed.")
    else:
        edit.write_config(file, after)
        print(f"{file}: valid, and written")
    draft.unlink()
    return 0


def _edit_until_valid(draft: Path, command: Sequence[str]) -> str:
    while True:
        _run_editor(draft, command)
        text = read_config(draft)
        try:
            check_text(text, draft)
        except ConfigError as error:
            output.show_error(error.message, error.hint)
            if stdin.is_terminal() and typer.confirm("Edit it again?", default=True):
                continue
            raise ConfigError(
                "the config file was left as it was", hint=f"the draft is {draft}"
            ) from None
        return text


def _run_editor(file: Path, command: Sequence[str]) -> None:
    with system_errors_as(UsageError, f"{command[0]} can't be started", "set EDITOR"):
        process = subprocess.run([*command, str(file)], check=False)
    if process.returncode:
        raise UsageError(
            f"{command[0]} ended with code {process.returncode}, so nothing was changed",
            hint=f"the draft is {file}",
        )


def editor_command(environ: Mapping[str, str], *, at_terminal: bool) -> list[str]:
    """Return $VISUAL or $EDITOR; `at_terminal`, else nano or vi. Raises UsageError without any."""
    try:
        command = shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "")
    except ValueError as error:
        raise UsageError(f"EDITOR is no command: {error}", hint="EDITOR=vim, for example") from None
    if command:
        return command
    if not at_terminal:
        raise UsageError(
            "there is no terminal to edit on",
            hint="`omlx-server config set KEY VALUE` changes one key; EDITOR names a program",
        )
    for program in _EDITORS:
        if shutil.which(program):
            return [program]
    raise UsageError("there is no editor", hint="set EDITOR, for example EDITOR=vim")
