"""`omlx-server launch`: other people's agents with the environment that points to this server.

Nothing of theirs is changed: all is said by variables and flags of the one process. A key is
handed over, but never printed.
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omlx_server.cli.server_client.address import server_of
from omlx_server.cli.server_client.http import Asked, NoAnswer
from omlx_server.cli.server_client.unix import socket_of
from omlx_server.cli.shell.options import load_settings
from omlx_server.errors import OmlxError, UsageError

KEY_VARIABLE = "OMLX_API_KEY"
_NO_KEY = "none-needed"
_STARTER = "starter"


@dataclass(frozen=True, slots=True)
class Target:
    """The server and the model to ask. `key` is never empty: clients insist on one."""

    url: str
    model: str
    key: str = _NO_KEY


@dataclass(frozen=True, slots=True)
class Launch:
    """How a client is started. `unset`: variables that would lead it to somebody else."""

    command: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
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
    make = _known(client)
    target = _target(url, model, config, must_answer=not show)
    launch = make(target)
    if show:
        print(as_shell(launch, arguments, target.key))
        return 0
    return _exec(client, launch, arguments)


def _known(client: str) -> Callable[[Target], Launch]:
    if client not in CLIENTS:
        raise UsageError(f"{client} is not known", hint=f"known are {', '.join(CLIENTS)}")
    return CLIENTS[client]


def _target(url: str, model: str, config: Path | None, *, must_answer: bool) -> Target:
    settings = load_settings(config).settings
    server = server_of(url, os.environ.get(KEY_VARIABLE, ""), config)
    if socket_of(server.url):
        raise UsageError(
            "other programs' agents can't reach a Unix socket",
            hint="let the server listen on a port: omlx-server config set server.uds ''",
        )
    served = _served(server, must_answer=must_answer)
    chosen = model or next(iter(served), "") or settings.models.default or _STARTER
    if model and served and model not in served:
        raise UsageError(f"{server.url} does not serve {model}", hint=f"it has {', '.join(served)}")
    return Target(server.url, chosen, server.key or _NO_KEY)


def _served(server: Asked, *, must_answer: bool) -> list[str]:
    try:
        return server.models()
    except NoAnswer:
        if must_answer:
            raise
        return []


def _exec(client: str, launch: Launch, arguments: Sequence[str]) -> int:
    """Become the client."""
    program = shutil.which(launch.command[0])
    if program is None:
        raise UsageError(f"{client} is not on the PATH", hint=f"install it: {INSTALL[client]}")
    environ = {k: v for k, v in os.environ.items() if k not in launch.unset}
    try:
        os.execve(program, [*launch.command, *arguments], {**environ, **launch.environ})
    except OSError as error:
        raise OmlxError(f"{program} can't be started: {error.strerror}") from None


def as_shell(launch: Launch, arguments: Sequence[str], key: str) -> str:
    """What to type for the same, the key by reference."""
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
    return Launch(("claude",), environ, elsewhere)


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
    return Launch(("codex", *flags), {KEY_VARIABLE: target.key})


def _opencode(target: Target) -> Launch:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "omlx-server",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {target.model: {"name": target.model}},
    }
    name = f"omlx/{target.model}"
    document = {"provider": {"omlx": provider}, "model": name, "small_model": name}
    environ = {"OPENCODE_CONFIG_CONTENT": json.dumps(document), KEY_VARIABLE: target.key}
    return Launch(("opencode",), environ)


def _aider(target: Target) -> Launch:
    environ = {"OPENAI_API_BASE": f"{target.url}/v1", "OPENAI_API_KEY": target.key}
    return Launch(("aider", "--model", f"openai/{target.model}"), environ)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


CLIENTS: Mapping[str, Callable[[Target], Launch]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "aider": _aider,
}
INSTALL = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "codex": "npm install -g @openai/codex",
    "opencode": "npm install -g opencode-ai",
    "aider": "python -m pip install aider-install && aider-install",
}
