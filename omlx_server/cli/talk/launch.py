"""`omlx-server launch`: starts coding agents of others so that they use this server.

Their config files are not changed: all is passed as environment variables and flags of the one
process. An API key is passed on, but never printed.
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.cli.server_client.address import server_of
from omlx_server.cli.server_client.http import NoAnswer, ServerClient, socket_of
from omlx_server.cli.shell.options import load_settings
from omlx_server.errors import OmlxError, UsageError, system_errors_as
from omlx_server.models.catalogue import STARTER

KEY_VARIABLE = "OMLX_API_KEY"
_NO_KEY = "none-needed"


@dataclass(frozen=True, slots=True)
class Target:
    """The server and the model that the client is to use, and whether that takes images. `key` is
    never empty, because clients insist on one."""

    url: str
    model: str
    key: str = _NO_KEY
    takes_images: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """How a client is started: its `command`, and the variables of `environ`. Those in `unset` are
    removed, as they would lead it to another server. `install` is the command that installs it."""

    install: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    unset: tuple[str, ...] = ()


def run(
    *,
    client: str,
    arguments: Sequence[str],
    show: bool,
    model: str,
    url: str,
    config: Path | None,
) -> int:
    if client not in CLIENTS:
        raise UsageError(f"{client} is not known", hint=f"known are {', '.join(CLIENTS)}")
    target = _target(url, model, config, must_answer=not show)
    launch = CLIENTS[client](target)
    if show:
        print(as_shell(launch, arguments, target.key))
        return 0
    return _exec(client, launch, arguments)


def _target(url: str, model: str, config: Path | None, *, must_answer: bool) -> Target:
    settings = load_settings(config).settings
    server = server_of(url, os.environ.get(KEY_VARIABLE, ""), config)
    if socket_of(server.url):
        raise UsageError(
            "other programs' agents can't reach a Unix socket",
            hint="let the server listen on a port: omlx-server config set server.uds ''",
        )
    served = _served(server, must_answer=must_answer)
    chosen = model or next(iter(served), "") or settings.models.default or STARTER.name
    if model and served and model not in served:
        raise UsageError(f"{server.url} does not serve {model}", hint=f"it has {', '.join(served)}")
    images = _takes_images(served.get(chosen, {}))
    return Target(server.url, chosen, server.key or _NO_KEY, images)


def _served(server: ServerClient, *, must_answer: bool) -> Mapping[str, Mapping[str, Any]]:
    try:
        return server.model_listings()
    except NoAnswer:
        if must_answer:
            raise
        return {}


def _takes_images(listing: Mapping[str, Any]) -> bool:
    architecture = listing.get("architecture")
    taken = architecture.get("input_modalities") if isinstance(architecture, Mapping) else None
    return isinstance(taken, list) and "image" in taken


def _exec(client: str, launch: Launch, arguments: Sequence[str]) -> int:
    """Replace this process by the client. Raises UsageError if it is not on the PATH, and OmlxError
    if it can't be started."""
    program = shutil.which(launch.command[0])
    if program is None:
        raise UsageError(f"{client} is not on the PATH", hint=f"install it: {launch.install}")
    environ = {k: v for k, v in os.environ.items() if k not in launch.unset}
    with system_errors_as(OmlxError, f"{program} can't be started"):
        os.execve(program, [*launch.command, *arguments], {**environ, **launch.environ})


def as_shell(launch: Launch, arguments: Sequence[str], key: str) -> str:
    """The shell command that starts the same client; it names the key as $OMLX_API_KEY."""
    words = ["env", *(part for name in launch.unset for part in ("-u", name))]
    words += [f"{name}={value}" for name, value in launch.environ.items()]
    return " ".join(_quoted(word, key) for word in [*words, *launch.command, *arguments])


def _quoted(word: str, key: str) -> str:
    if key == _NO_KEY or key not in word:
        return shlex.quote(word)
    return f'"${KEY_VARIABLE}"'.join(shlex.quote(part) if part else "" for part in word.split(key))


# --- The clients ---------------------------------------------------------------------------------


def _claude(target: Target) -> Launch:
    models = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    environ = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        **{f"ANTHROPIC_{name}": target.model for name in models},
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    elsewhere = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX")
    return Launch("npm install -g @anthropic-ai/claude-code", ("claude",), environ, elsewhere)


def _codex(target: Target) -> Launch:
    provider = {
        "name": "omlx-server",
        "base_url": f"{target.url}/v1",
        "wire_api": "responses",
        "env_key": KEY_VARIABLE,
    }
    settings = {f"model_providers.omlx.{name}": value for name, value in provider.items()}
    settings = {"model_provider": "omlx", "model": target.model, **settings}
    # A value is read as TOML, whose texts are those of JSON.
    flags = [word for name, value in settings.items() for word in ("-c", f"{name}={_text(value)}")]
    return Launch("npm install -g @openai/codex", ("codex", *flags), {KEY_VARIABLE: target.key})


def _opencode(target: Target) -> Launch:
    model: dict[str, Any] = {"name": target.model}
    if target.takes_images:  # else it leaves them out
        model["modalities"] = {"input": ["text", "image"], "output": ["text"]}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "omlx-server",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {target.model: model},
    }
    name = f"omlx/{target.model}"
    document = {"provider": {"omlx": provider}, "model": name, "small_model": name}
    environ = {"OPENCODE_CONFIG_CONTENT": json.dumps(document), KEY_VARIABLE: target.key}
    return Launch("npm install -g opencode-ai", ("opencode",), environ)


def _aider(target: Target) -> Launch:
    environ = {"OPENAI_API_BASE": f"{target.url}/v1", "OPENAI_API_KEY": target.key}
    install = "python -m pip install aider-install && aider-install"
    return Launch(install, ("aider", "--model", f"openai/{target.model}"), environ)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


CLIENTS: Mapping[str, Callable[[Target], Launch]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "aider": _aider,
}
