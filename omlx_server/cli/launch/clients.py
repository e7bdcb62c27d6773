"""The coding agents that `launch` can start. docs/clients.md names the versions that were tried."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from omlx_server.cli.server_client.http import NoAnswer, ServerClient
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.errors import UsageError
from omlx_server.models.catalogue import STARTER
from omlx_server.models.hub.names import best_that_fits
from omlx_server.settings import Settings
from omlx_server.settings.overrides import context_of
from omlx_server.settings.types import own_place

KEY_VARIABLE = "OMLX_API_KEY"
# In tokens: it keeps 13,000 free beside the answer, and its own prompt has 17,000.
_CLAUDE_LEAST_CONTEXT = 48_000
_FILES_DIRECTORY = "~/.cache/omlx_server/launch"


NO_KEY = "none-needed"
LEAST_CONTEXT = 32_000
"""Tokens that agents need. Their own prompts and tools take 5,000 to 17,000 of them (measured)."""

_MOST_OUTPUT = 32_000  # tokens
_HELLO = [{"role": "user", "content": "Hello"}]

Listing = Mapping[str, Any]
"""An entry of GET /v1/models."""


@dataclass(frozen=True, slots=True)
class LaunchTarget:
    """The server and model for a client. `key` is never empty. `context`: tokens, 0 if unknown."""

    url: str
    model: str
    key: str = NO_KEY
    takes_images: bool = False
    context: int = 0

    @property
    def output(self) -> int:
        """The most tokens of one answer: a quarter of the context at most."""
        return min(self.context // 4, _MOST_OUTPUT)


def target_of(
    server: ServerClient, model: str, settings: Settings, *, must_answer: bool
) -> LaunchTarget:
    """Return `model`, or else the server's first model that chats; without an answer the default
    model by its files. Raises NoAnswer if the server `must_answer`, UsageError if the model is
    unknown or can't chat, else OmlxError."""
    usual = model or settings.models.default or STARTER.name
    listings = _listings(server, usual, settings, must_answer=must_answer)
    chosen = choose_model(server.url, listings, model) or usual
    listing = listings.get(chosen, {})
    context = listed_context(listing)
    if must_answer:
        context = _context_when_loaded(server, chosen, listings) or context
    takes_images = "image" in _architecture(listing, "input_modalities")
    return LaunchTarget(server.url, chosen, server.key or NO_KEY, takes_images, context)


def choose_model(url: str, listings: Mapping[str, Listing], model: str) -> str:
    """Return `model`, or else the first that chats, if any. Ollama's `NAME:latest` means NAME.
    Raises UsageError if the model is not served or can't chat."""
    if not listings:
        return model
    if model not in listings:
        model = model.removesuffix(":latest")
    if model and model not in listings:
        raise UsageError(f"{url} does not serve {model}", hint=f"it has {', '.join(listings)}")
    if not model:
        chatting = [name for name in listings if can_chat(listings[name])]
        model = next(iter(chatting or listings))
    if not can_chat(listings[model]):
        raise _cannot_chat_error(model, "it embeds or ranks texts", listings)
    return model


def can_chat(listing: Listing) -> bool:
    """Whether the model answers with text. True if unknown."""
    output_kinds = _architecture(listing, "output_modalities")
    return not output_kinds or "text" in output_kinds


def listed_context(listing: Listing) -> int:
    """Return the tokens of the context; 0 if unknown."""
    length = listing.get("max_model_len")
    return length if isinstance(length, int) and length > 0 else 0


def short_context_warning(
    model: str, context: int, limit: int, needs: str = "agents need", least: int = LEAST_CONTEXT
) -> str:
    """Return a warning for fewer than `least` tokens, with a model that fits into `limit` bytes."""
    if not 0 < context < least:
        return ""
    better = best_that_fits(limit, least)
    advice = "serve a model with a longer one (omlx-server serve MODEL)"
    if better is not None:
        advice = f"`omlx-server up {better.name}` serves one with {better.context:,}"
    return f"{model} has a context of {context:,} tokens, and {needs} {least:,} or more; {advice}"


def _listings(
    server: ServerClient, usual: str, settings: Settings, *, must_answer: bool
) -> Mapping[str, Listing]:
    try:
        return server.model_listings()
    except NoAnswer:
        if must_answer:
            raise
    listing = _listing_on_disk(usual, settings)
    return {} if listing is None else {usual: listing}


def _listing_on_disk(name: str, settings: Settings) -> dict[str, Any] | None:
    """Describe a model on this machine as GET /v1/models would."""
    # These imports take half a second.
    from omlx_server.cli.models.list import image_facts
    from omlx_server.cli.models.named import find_with_adapter

    try:
        model, _ = find_with_adapter(settings.models.resolve_alias(name), settings)
    except UsageError:
        return None
    takes_images = image_facts(model, settings)["images"]
    architecture = {
        "input_modalities": ["text", "image"] if takes_images else ["text"],
        "output_modalities": ["text"] if model.kind is ModelKind.CHAT else [model.kind.value],
    }
    listing: dict[str, Any] = {"architecture": architecture}
    if model.context_length:
        overrides = settings.overrides_of(model.names)
        listing["max_model_len"] = context_of(overrides, model.context_length)
    return listing


def _context_when_loaded(server: ServerClient, model: str, listings: Mapping[str, Listing]) -> int:
    """Let the server load the model; return its context in tokens, or 0. Raises UsageError."""
    try:
        reply = server.post("/tokenize", {"model": model, "messages": _HELLO})
    except NoAnswer:
        return 0
    if reply.error.get("code") == "no_chat_template":
        raise _cannot_chat_error(model, "it has no chat template", listings)
    return listed_context(reply.json_object or {}) if reply.status == HTTPStatus.OK else 0


def _cannot_chat_error(model: str, why: str, listings: Mapping[str, Listing]) -> UsageError:
    others = [name for name in listings if name != model and can_chat(listings[name])]
    hint = "serve one that does: omlx-server serve MODEL"
    if others:
        hint = f"take another with --model: {', '.join(others)}"
    return UsageError(f"{model} can't chat: {why}", hint=hint)


def _architecture(listing: Listing, name: str) -> Sequence[str]:
    architecture = listing.get("architecture")
    values = architecture.get(name) if isinstance(architecture, Mapping) else None
    return values if isinstance(values, list) else []


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
