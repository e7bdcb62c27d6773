"""Proxies that the environment names."""

from collections.abc import Iterator

import httpx
import pytest
from huggingface_hub import close_session

from omlx_server.models.hub.hub import Hub, HubSilent


@pytest.fixture(params=["socks5://127.0.0.1:9", "socks5h://127.0.0.1:9", "socks4://127.0.0.1:9"])
def proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One where nothing listens, or of a kind that is not known."""
    for name in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(name, request.param)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    close_session()
    yield request.param
    close_session()


def test_the_hub_is_asked_through_it(proxy: str, hub: Hub) -> None:
    why = "Unknown scheme for proxy" if proxy.startswith("socks4:") else "Connection refused"
    with pytest.raises(HubSilent, match=f"Could not download acme/m: .*{why}"):
        hub.look("acme/m")


def test_so_are_servers_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with httpx.Client() as client:
        assert client
