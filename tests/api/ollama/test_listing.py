"""The list of models with their adapters, of a catalogue that never changes."""

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx_server.api.app import create_app
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import CHAT
from omlx_server.core.adapters import CONFIG
from omlx_server.engine.pool.entry import ModelRequest
from omlx_server.models.adapters.registry import AdapterPlaces
from omlx_server.settings import Settings
from omlx_server.wiring.context import make_context
from tests.api.fixed import Fixed, fixed_models

NAMES = ("org/tiny", "tiny")


@pytest.mark.parametrize(
    ("route", "list_", "key"),
    [
        ("/api/tags", "models", "name"),
        ("/v1/models", "data", "id"),
    ],
)
def test_the_adapters_of_a_model_are_looked_up_once_for_all_its_names(
    route: str, list_: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
        (tmp_path / "adapters" / name / CONFIG).write_text("{}")
    tiny = ModelListing(
        CHAT, NAMES, ModelRequest("0", 0), 0, 512, adapters=AdapterPlaces(tmp_path, NAMES)
    )
    models = fixed_models()
    catalogue = Fixed((tiny,), aliases={"small": "tiny"})
    served = ServedModels(models.pool, catalogue, models.vitals, models.caches)
    transport = httpx.ASGITransport(create_app(make_context(served, Settings())))
    looked, scandir = [], os.scandir

    def counting(path: Any) -> Any:
        looked.append(path)
        return scandir(path)

    async def listed() -> list[str]:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return [one[key] for one in (await http.get(route)).json()[list_]]

    monkeypatch.setattr(os, "scandir", counting)
    expected = [f"{name}{end}" for name in (*NAMES, "small") for end in ("", ":one", ":two")]
    assert sorted(asyncio.run(listed())) == sorted(expected)
    assert looked == [tmp_path / "adapters"]
