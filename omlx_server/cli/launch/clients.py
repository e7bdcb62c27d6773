"""The coding agents that `launch` can start. docs/clients.md names the versions that were tried."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omlx_server.cli.launch.target import LEAST_CONTEXT, LaunchTarget
from omlx_server.settings.types import own_place

KEY_VARIABLE = "OMLX_API_KEY"
# In tokens: it keeps 13,000 free beside the answer, and its own prompt has 17,000.
_CLAUDE_LEAST_CONTEXT = 48_000
_FILES_DIRECTORY = "~/.cache/omlx_server/launch"


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How a client is started. Variables in `unset` would lead it to another server. `files` are
    contents by path; `install` installs the client; `least_context` is in tokens."""

    install: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    unset: tuple[str, ...] = ()
    files: Mapping[Path, str] = field(default_factory=dict)
    least_context: int = LEAST_CONTEXT


def _claude(target: LaunchTarget) -> LaunchCommand:
    models = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    environ = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        **{f"ANTHROPIC_{name}": target.model for name in models},
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        # Updates, telemetry, error reports and surveys.
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if target.context:  # else it takes 200,000 tokens, and answers of 32,000
        environ["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context)
        environ["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(target.output)
    of_other_servers = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX")
    install = "npm install -g @anthropic-ai/claude-code"
    return LaunchCommand(
        install, ("claude",), environ, unset=of_other_servers, least_context=_CLAUDE_LEAST_CONTEXT
    )


def _codex(target: LaunchTarget) -> LaunchCommand:
    provider = {
        "name": "omlx-server",
        "base_url": f"{target.url}/v1",
        "wire_api": "responses",
        "env_key": KEY_VARIABLE,
    }
    settings: dict[str, object] = {"model_provider": "omlx", "model": target.model}
    settings |= {f"model_providers.omlx.{name}": value for name, value in provider.items()}
    settings |= {"check_for_update_on_startup": False, "analytics.enabled": False}
    if target.context:  # else it takes 272,000 tokens
        settings["model_context_window"] = target.context
        # By itself it leaves a tenth of the context for the answer.
        settings["model_auto_compact_token_limit"] = target.context - target.output
    # A value is read as TOML, whose texts, numbers and booleans are those of JSON.
    flags = [word for name, value in settings.items() for word in ("-c", f"{name}={_json(value)}")]
    return LaunchCommand(
        "npm install -g @openai/codex", ("codex", *flags), {KEY_VARIABLE: target.key}
    )


def _opencode(target: LaunchTarget) -> LaunchCommand:
    model: dict[str, Any] = {"name": target.model}
    if target.takes_images:  # else it leaves them out
        model["modalities"] = {"input": ["text", "image"], "output": ["text"]}
    if target.context:  # else it never sums up a conversation
        model["limit"] = {"context": target.context, "output": target.output}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "omlx-server",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {target.model: model},
    }
    name = f"omlx/{target.model}"
    document = {
        "provider": {"omlx": provider},
        "model": name,
        "small_model": name,
        "autoupdate": False,
    }
    environ = {"OPENCODE_CONFIG_CONTENT": json.dumps(document), KEY_VARIABLE: target.key}
    return LaunchCommand("npm install -g opencode-ai", ("opencode",), environ)


def _aider(target: LaunchTarget) -> LaunchCommand:
    name = f"openai/{target.model}"
    environ = {
        "OPENAI_API_BASE": f"{target.url}/v1",
        "OPENAI_API_KEY": target.key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks GitHub for the newest
    }
    command = ["aider", "--model", name, "--no-check-update", "--no-analytics"]
    files = {}
    if target.context:
        path, content = _aider_metadata(name, target)
        files[path] = content
        command += ["--model-metadata-file", str(path)]
    install = "python -m pip install aider-install && aider-install"
    return LaunchCommand(install, tuple(command), environ, files=files)


def _aider_metadata(name: str, target: LaunchTarget) -> tuple[Path, str]:
    limits = {
        "max_tokens": target.output,
        "max_input_tokens": target.context,
        "max_output_tokens": target.output,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    content = _json({name: limits})
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return own_place(_FILES_DIRECTORY) / f"aider-{digest}.json", content


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


CLIENTS: Mapping[str, Callable[[LaunchTarget], LaunchCommand]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "aider": _aider,
}
