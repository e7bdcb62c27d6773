"""Metal is asked to wire memory only where `memory.wired` says so."""

import mlx.core as mx
import pytest

from omlx_server.compute.hardware import device
from omlx_server.process.apply import change_instances
from omlx_server.settings import Settings
from omlx_server.wiring.model_factory import InstanceFactory

GB = 10**9


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What MLX was asked to wire, on a Mac of 16 GB."""
    asked: list[int] = []
    monkeypatch.setattr(device, "working_set", lambda: 12 * GB)
    monkeypatch.setattr(mx, "set_wired_limit", asked.append)
    return asked


def settings(wired: object, limit: int = 8 * GB) -> Settings:
    cache = {"hot_cache_only": True}
    return Settings.of({"memory": {"limit": limit, "wired": wired}, "cache": cache})


@pytest.mark.parametrize(
    ("setting", "expected"), [("off", []), ("auto", [8 * GB]), (3 * GB, [3 * GB])]
)
def test_memory_is_wired_only_where_it_is_wanted(
    wired: list[int], setting: object, expected: list[int]
) -> None:
    InstanceFactory(settings(setting))
    assert wired == expected


def test_a_new_limit_wires_nothing_either(wired: list[int]) -> None:
    instances = InstanceFactory(settings("off"))
    change_instances(instances, settings("off", 9 * GB))
    assert instances.account.limit == 9 * GB and wired == []


def test_the_default_wires_nothing(wired: list[int]) -> None:
    InstanceFactory(Settings.of({"cache": {"hot_cache_only": True}}))
    assert wired == []
