"""Models to choose from: usual ones, and what a hub of ours has."""

from pathlib import Path

import pytest

from omlx_server.core.memory.fit import Fit
from omlx_server.errors import ModelUnavailable
from omlx_server.models.hub.names import HubName
from omlx_server.models.offers.offers import find_offers, offer_of
from tests.models import fake_hub
from tests.models.directories import Places, make
from tests.models.fake_hub import HubAt

LIMIT = 12_900_000_000
TEMPLATE = "{% if tools %}<tool_call>{% endif %}<think></think>"
LLAMA = {"architectures": ["LlamaForCausalLM"], "tokenizer_config": {"chat_template": TEMPLATE}}
LARGE = frozenset({"model.safetensors"})


def model(name: str, gigabytes: float, **more: object) -> dict[str, object]:
    tensors = {"parameters": {"U32": round(gigabytes * 1e9 / 4)}}
    return {"id": name, "config": LLAMA, "safetensors": tensors, **more}


def test_usual_models_say_what_they_need_and_can(tmp_path: Path) -> None:
    make(tmp_path / "mlx-community" / "Qwen3-4B-4bit")
    offers = {o["name"]: o for o in find_offers("", Places([tmp_path]), LIMIT)[0]}
    assert offers["qwen3-4b"]["here"] and not offers["qwen3.5-9b"]["here"]
    assert offers["qwen3.5-9b"]["abilities"] == ["tools", "thinking", "images"]
    fits = {name: offers[name]["fit"] for name in ("qwen3.5-9b", "phi-4", "llama3.3-70b")}
    assert fits == {"qwen3.5-9b": "fits", "phi-4": "fits", "llama3.3-70b": "too large"}


def test_the_hubs_models_are_judged_by_their_size(tmp_path: Path, hub_at: HubAt) -> None:
    models: list[dict[str, object]] = [
        model("acme/small", 1.0, pipeline_tag="image-text-to-text"),
        model("acme/middle", 8.0),
        model("acme/large", 40.0),
        {"id": "acme/bare"},
        {"id": "mlx-community/phi-4-4bit", "downloads": 9, "config": LLAMA},
    ]
    with fake_hub.serve("a/b", {}, models=models) as (address, asked):
        hub_at(address)
        offers, error = find_offers("phi-4", Places([tmp_path]), LIMIT)
    assert error is None
    by_name = {offer["name"]: offer for offer in offers}
    assert next(iter(by_name)) == "phi-4" and by_name["phi-4"]["downloads"] == 9
    fits = {name.removeprefix("acme/"): offer["fit"] for name, offer in by_name.items()}
    assert fits == {
        "phi-4": "fits",
        "small": "fits",
        "middle": "tight",
        "large": "too large",
        "bare": None,
    }
    assert by_name["acme/small"]["abilities"] == ["tools", "thinking", "images"]
    assert by_name["acme/bare"]["abilities"] == []
    assert len([line for line in asked if "/api/models" in line]) == 1


def test_one_model_is_judged_by_its_config(hub_at: HubAt) -> None:
    layers = '"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096'
    files = {"config.json": f"{{{layers}}}".encode(), "model.safetensors": b"x" * 1000}
    with fake_hub.serve("acme/one", files, LARGE) as (address, _):
        hub_at(address)
        # 32k tokens of it take 17.2 GB.
        assert offer_of(HubName("acme/one"), 19_000_000_000) == (1000, Fit.FITS)
        assert offer_of(HubName("acme/one"), 18_000_000_000) == (1000, Fit.TIGHT)
        assert offer_of(HubName("acme/one"), 2_000_000_000) == (1000, Fit.TOO_LARGE)
    with pytest.raises(ModelUnavailable):
        offer_of(HubName("acme/none"), LIMIT)


def test_one_tag_of_a_repository_is_weighed(hub_at: HubAt) -> None:
    files = {"a-Q4_K_M.gguf": b"x" * 1000, "a-Q8_0.gguf": b"x" * 1900}
    with fake_hub.serve("acme/one", files, frozenset(files)) as (address, _):
        hub_at(address)
        assert offer_of(HubName("acme/one"), LIMIT) == (1000, Fit.FITS)
        assert offer_of(HubName("acme/one", tag="Q8_0"), LIMIT) == (1900, Fit.FITS)
