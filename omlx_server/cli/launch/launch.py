"""`omlx-server launch`: becomes a coding agent that uses this server. Never prints an API key."""

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omlx_server.cli.launch.clients import (
    CLIENTS,
    KEY_VARIABLE,
    NO_KEY,
    LaunchCommand,
    short_context_warning,
    target_of,
)
from omlx_server.cli.server_client.http import server_of, socket_of, stored_key
from omlx_server.cli.shell.options import load_settings, memory_limit
from omlx_server.cli.shell.output import say
from omlx_server.errors import OmlxError, UsageError, system_errors_as
from omlx_server.settings.whole_file import PRIVATE_FILE, replacing


def run(
    client: str, *, arguments: Sequence[str], show: bool, model: str, url: str, config: Path | None
) -> int:
    if client not in CLIENTS:
        raise UsageError(f"{client} is not known", hint=f"known are {', '.join(CLIENTS)}")
    settings = load_settings(config).settings
    server = server_of(url, os.environ.get(KEY_VARIABLE, ""), config)
    if socket_of(server.url):
        raise UsageError(
            "other programs' agents can't reach a Unix socket",
            hint="let the server listen on a port: omlx-server config set server.uds ''",
        )
    target = target_of(server, model, settings, must_answer=not show)
    if show and not url:  # the server may come later, and only the key's name is shown
        target = replace(target, key=server.key or stored_key(settings) or NO_KEY)
    launch = CLIENTS[client](target)
    needs, least = f"{client} needs", launch.least_context
    if warning := short_context_warning(
        target.model, target.context, memory_limit(settings), needs, least
    ):
        say(f"warning: {warning}")
    if not target.context:
        say(f"note: the size of the context of {target.model} is not known, so it is left out")
    if show:
        _write_files(launch)
        if target.key not in (NO_KEY, os.environ.get(KEY_VARIABLE)):
            say(f"note: the key stands in auth.api_keys; the shell needs it in {KEY_VARIABLE}")
        print(as_shell(launch, arguments, target.key))
        return 0
    return _become_client(client, launch, arguments)


def _write_files(launch: LaunchCommand) -> None:
    for path, content in launch.files.items():
        with system_errors_as(OmlxError, f"{path} can't be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, PRIVATE_FILE) as file:
                file.write(content.encode())


def _become_client(client: str, launch: LaunchCommand, arguments: Sequence[str]) -> int:
    program = shutil.which(launch.command[0])
    if program is None:
        raise UsageError(f"{client} is not on the PATH", hint=f"install it: {launch.install}")
    _write_files(launch)
    environ = {name: os.environ[name] for name in os.environ if name not in launch.unset}
    with system_errors_as(OmlxError, f"{program} can't be started"):
        os.execve(program, [*launch.command, *arguments], {**environ, **launch.environ})


def as_shell(launch: LaunchCommand, arguments: Sequence[str], key: str) -> str:
    """Return the shell command that starts the client; it names the key as $OMLX_API_KEY."""
    words = ["env"]
    for name in launch.unset:
        words += ["-u", name]
    words += [f"{name}={value}" for name, value in launch.environ.items()]
    return " ".join(_quoted(word, key) for word in [*words, *launch.command, *arguments])


def _quoted(word: str, key: str) -> str:
    if key == NO_KEY or key not in word:
        return shlex.quote(word)
    texts_around_key = [shlex.quote(text) if text else "" for text in word.split(key)]
    return f'"${KEY_VARIABLE}"'.join(texts_around_key)
