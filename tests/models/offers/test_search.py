"""A search of the hub, in the form that its documents tell."""

import pytest

from omlx_server.errors import FetchFailed
from omlx_server.models.offers.search import HubModel, search
from tests.models import fake_hub
from tests.models.fake_hub import Faults, HubAt

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MODELS: list[dict[str, object]] = [
    {
        "_id": "1",
        "id": "mlx-community/Llama-3.2-1B-Instruct-4bit",
        "downloads": 12_345,
        "gated": False,
        "config": LLAMA,
        "safetensors": {"parameters": {"F16": 40_000, "U32": 150_000}, "total": 190_000},
    },
    {"_id": "2", "id": "acme/closed", "downloads": 7, "gated": "manual", "config": LLAMA},
    {
        "_id": "3",
        "id": "acme/whisper",
        "downloads": 3,
        "config": {"architectures": ["WhisperModel"], "model_type": "whisper"},
        "safetensors": {"parameters": {"Q9": 5}, "total": 5},
    },
    {"_id": "4", "id": "acme/bare"},
]


def test_what_the_hub_tells_is_found(hub_at: HubAt) -> None:
    with fake_hub.serve("a/b", {}, models=MODELS) as (address, asked):
        hub_at(address)
        found = search("llama 1b", 20)
    assert found == [
        HubModel("mlx-community/Llama-3.2-1B-Instruct-4bit", 680_000, 12_345, False, ""),
        HubModel("acme/closed", None, 7, True, ""),
        HubModel(
            "acme/whisper",
            None,
            3,
            False,
            "is WhisperModel: no model to chat, to embed or to rank",
            chats=False,
        ),
        HubModel("acme/bare", None, 0, False, ""),
    ]
    [line] = [line for line in asked if "/api/models" in line]
    assert "search=llama+1b" in line and "filter=mlx" in line
    assert "sort=downloads" in line and "limit=20" in line


def test_a_hub_that_is_away_or_fails_is_told_in_a_line(hub_at: HubAt) -> None:
    hub_at("http://127.0.0.1:9")
    with pytest.raises(FetchFailed, match="can't be reached"):
        search("llama", 20)
    with fake_hub.serve("a/b", {}, faults=Faults(error_code="Broken")) as (address, _):
        hub_at(address)
        with pytest.raises(FetchFailed, match="can't search") as caught:
            search("llama", 20)
    assert "\n" not in caught.value.message
