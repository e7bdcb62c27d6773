"""The options of an httpx client for a server, and errors of httpx in our words."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from omlx_server.cli.server_client.http import (
    ServerClient,
    is_local,
    missing_key_error,
    no_answer_error,
    socket_of,
    wrong_url_error,
)
from omlx_server.errors import OmlxError


def http_options(server: ServerClient, transport: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments for an httpx client with this transport class. Raises UsageError."""
    url, socket = server.url, socket_of(server.url)
    with reading_answer(url):
        return {
            "base_url": httpx.URL("http://localhost" if socket else url),
            "headers": {"Authorization": f"Bearer {server.key}"} if server.key else {},
            # No web proxy of the environment may see requests to this machine, or our own key.
            "trust_env": not (is_local(url) or server.is_own),
            "transport": transport(uds=socket) if socket else None,
        }


@contextmanager
def reading_answer(url: str) -> Iterator[None]:
    """Turn errors as `connecting` does, and JSON of another shape into an OmlxError. Only read an
    answer in the body: a bug there would be reported as such JSON."""
    try:
        with connecting(url):
            yield
    except (ValueError, KeyError, TypeError, AttributeError):  # JSON of another shape
        raise OmlxError(f"{url} does not answer as an OpenAI server does") from None


@contextmanager
def connecting(url: str) -> Iterator[None]:
    """Turn errors of the connection into an OmlxError; a wrong URL into a UsageError."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout):
        raise no_answer_error(url) from None
    except httpx.InvalidURL:
        raise wrong_url_error(url) from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise OmlxError(f"the connection to {url} broke: {reason}") from None


def refusal(response: httpx.Response) -> str:
    """Return the server's message about a refused request. Raises UsageError for HTTP 401."""
    if response.status_code == 401:
        raise missing_key_error()
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = response.reason_phrase
    return f"{message} (HTTP {response.status_code})"
