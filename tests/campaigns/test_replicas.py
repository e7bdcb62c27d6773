"""The short form of `scripts/campaign replicas`, and what it takes from docs/replicas.md."""

from pathlib import Path

import pytest

from tests.campaigns import models, replicas
from tests.campaigns.replica_fleet import program_of
from tests.campaigns.replica_page import ROUTERS, read


@pytest.mark.parametrize("router", ROUTERS)
def test_a_campaign_runs_the_command_of_the_page(router: str) -> None:
    command = read().router_command(router, "program", 1234, ["http://a:1", "http://b:2"])
    assert command[-3:] == ["--worker-urls", "http://a:1", "http://b:2"]
    given = " ".join(command)
    assert "--policy cache_aware --cache-threshold 0.5 --balance-abs-threshold 2" in given
    assert "--host 127.0.0.1 --port 1234" in given and "0.0.0.0" not in given


def test_a_campaign_serves_with_the_settings_of_the_page() -> None:
    recipe = read()
    settings = recipe.server_settings("unix:///here")
    assert "cache.remote=unix:///here" in settings
    assert "cache.cold_write_through=true" in settings
    assert f"auth.api_keys={recipe.key}" in settings
    assert "--maxmemory-policy" in recipe.redis and "--bind" not in recipe.redis


def test_two_replicas_are_one_server_and_one_of_them_may_be_killed(tmp_path: Path) -> None:
    """CI has no router: it is a package of others, of 30 MB."""
    installed = [router for router in ROUTERS if program_of(router).exists()]
    if not installed:
        pytest.skip("no router is installed: scripts/campaign replicas installs one")
    model, sets = models.find("tiny", tmp_path / "models")
    outcome = replicas.campaign(
        model, sets, tmp_path, replicas.SHORT, router=installed[0], others=()
    )
    assert not outcome.problems, outcome.problems
