"""Asks a running server about its models, and changes them, with the admin token."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from omlx_server.cli.server_client.http import (
    HttpReply,
    ServerClient,
    is_local,
    running_server,
    server_of,
    with_admin_token,
)
from omlx_server.cli.shell.output import say
from omlx_server.core.chunk_sizes import ChunkSizes
from omlx_server.errors import OmlxError, UsageError
from omlx_server.settings import Settings

_UNKNOWN_MODEL = "model_not_found"
_NEEDS_TOKEN = ("admin_token_needed", "admin_unavailable")
_LOADED_ONLY = "note: only what is loaded is shown: the admin token of the server tells more"
_PS_HINT = "`omlx-server ps` shows the models that it has, `omlx-server pull NAME` gets another one"


def admin_server_of(
    url: str, api_key: str, config: Path | None, sets: Sequence[str]
) -> ServerClient:
    """Return `server_of`, `with_admin_token` unless `url` leads to another machine."""
    server = server_of(url, api_key, config, sets)
    return server if url and not is_local(server.url) else with_admin_token(server)


def own_admin_server(settings: Settings) -> ServerClient:
    return with_admin_token(running_server(settings))


def post_and_wait(server: ServerClient, path: str, body: object) -> Mapping[str, Any]:
    """Send a POST without time limit. Raises NoAnswer, else as `answer_of`."""
    return answer_of(server.post(path, body, seconds=None))


def fetch_models(server: ServerClient) -> Mapping[str, Any]:
    """Return a server's models and memory; without the admin token only loaded models."""
    reply = server.get("/admin/models")
    if reply.error.get("code") in _NEEDS_TOKEN:
        health = server.get("/health").json_object or {}
        if isinstance(health.get("loaded"), list):
            say(_LOADED_ONLY)
            return _loaded_models(health)
    return answer_of(reply)


def _loaded_models(health: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the models of GET /health in the shape of GET /admin/models."""
    models = {
        loaded["model"]: {"name": loaded["model"], "kind": loaded["kind"], "state": "loaded"}
        for loaded in health["loaded"]
    }
    for engine in health["engines"]:
        if engine["model"] in models:
            requests = engine["running"] + engine["prefilling"] + engine["waiting"]
            models[engine["model"]]["in_use"] = requests
    return {"models": list(models.values()), "memory": health.get("memory")}


def models_in(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the models in an answer. Raises OmlxError if it holds none."""
    models = answer.get("models")
    if not isinstance(models, list) or not all(isinstance(item, Mapping) for item in models):
        raise OmlxError("the server answers in a way that is not known: are the versions the same?")
    return models


def is_loaded(item: Mapping[str, Any]) -> bool:
    """Whether the model is in memory, also while it loads or unloads."""
    return item.get("state") not in ("absent", "failed")


def has_name(item: Mapping[str, Any], names: Sequence[str]) -> bool:
    own_names = item.get("names")
    all_names = [item.get("name"), *(own_names if isinstance(own_names, list) else [])]
    return any(name in all_names for name in names)


def answer_of(reply: HttpReply) -> Mapping[str, Any]:
    """Return an answer's JSON object. Raises UsageError for a refused key, else OmlxError."""
    if reply.status == HTTPStatus.OK and reply.json_object is not None:
        return reply.json_object
    message = reply.error.get("message")
    if reply.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise UsageError(
            str(message or "the server refuses"),
            hint="run this as the user of the server, or set OMLX_ADMIN_TOKEN and OMLX_API_KEY",
        )
    if reply.status == HTTPStatus.NOT_FOUND and message is None:
        raise OmlxError("this server has no routes for models: is it another program?")
    hint = _PS_HINT if reply.error.get("code") == _UNKNOWN_MODEL else ""
    raise OmlxError(f"{message or 'the server failed'} (HTTP {reply.status})", hint=hint)


def chunk_sizes_in_words(description: Mapping[str, Any]) -> str:
    """Return the prefill chunk sizes in a model's description; empty if unknown."""
    batched, alone = description.get("chunk_tokens"), description.get("chunk_tokens_alone")
    if not (isinstance(batched, int) and isinstance(alone, int)):
        return ""
    return str(ChunkSizes(batched, alone))
