"""The models of a running server, as it tells them to who has its token."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omlx_server.cli.server_client.address import own_server, server_of
from omlx_server.cli.server_client.http import Asked, Reply
from omlx_server.cli.server_client.unix import socket_of
from omlx_server.errors import OmlxError, UsageError
from omlx_server.settings import Settings
from omlx_server.settings.admin_token import read_admin_token

_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 200, 401, 403, 404
_UNKNOWN = "model_not_found"
_OTHERS = "`omlx-server ps` shows the models that it has, `omlx-server pull NAME` gets another one"


def admin_server_of(url: str, api_key: str, config: Path | None, sets: Sequence[str]) -> Asked:
    """As `server_of`. The token of this user goes to our own server, and to no other machine."""
    server = server_of(url, api_key, config, sets)
    return server if url and not _is_here(server.url) else _with_token(server)


def own_admin_server(settings: Settings) -> Asked:
    return _with_token(own_server(settings))


def _with_token(server: Asked) -> Asked:
    return replace(server, admin_token=read_admin_token())


def ask(server: Asked, path: str, body: object = None) -> Mapping[str, Any]:
    """The object of its answer, whenever that comes. Raises what the server has said is wrong."""
    return told(server.get(path) if body is None else server.post(path, body, seconds=None))


def items_of(said: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Raises OmlxError for what is no list of models."""
    models = said.get("models")
    if not isinstance(models, list) or not all(isinstance(item, Mapping) for item in models):
        raise OmlxError("the server answers in a way that is not known: are the versions the same?")
    return models


def is_loaded(item: Mapping[str, Any]) -> bool:
    """Also while it comes or goes."""
    return item.get("state") not in ("absent", "failed")


def is_of(item: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether the server tells of a model that is called so."""
    also = item.get("names")
    its_names = [item.get("name"), *(also if isinstance(also, list) else [])]
    return any(name in its_names for name in names)


def told(reply: Reply) -> Mapping[str, Any]:
    """The object of an answer. Raises what the server has said is wrong."""
    said = reply.json()
    if reply.status == _OK and isinstance(said, Mapping):
        return said
    error = said.get("error") if isinstance(said, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else None
    if reply.status in (_UNAUTHORIZED, _FORBIDDEN):
        raise UsageError(
            str(message or "the server refuses"),
            hint="run this as the user of the server, or set OMLX_ADMIN_TOKEN and OMLX_API_KEY",
        )
    if reply.status == _NOT_FOUND and message is None:
        raise OmlxError("this server has no routes for models: is it another program?")
    hint = _OTHERS if isinstance(error, Mapping) and error.get("code") == _UNKNOWN else ""
    raise OmlxError(f"{message or 'the server failed'} (HTTP {reply.status})", hint=hint)


def _is_here(url: str) -> bool:
    if socket_of(url):
        return True
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
