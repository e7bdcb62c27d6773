"""`omlx-server config edit`: an editor changes a draft, which replaces the file if it is valid."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from omlx_server.cli.shell import output, stdin
from omlx_server.errors import ConfigError, UsageError, system_errors_as
from omlx_server.settings import edit
from omlx_server.settings.layers import check_text, read_config

_EDITORS = ("nano", "vi")
_NEW_CONFIG = """\
# The settings of omlx-server that differ from their defaults. All there are, with what they do:
# config/omlx.example.toml; with their defaults: `omlx-server config show`.

[server]
# port = 8000
"""


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
