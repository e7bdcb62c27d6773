"""Adapters on the disk: where they are found, by which names, and what their files say."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from omlx_server.core.adapters import CONFIG, WEIGHTS
from omlx_server.errors import AdapterNotFound, AdapterUnusable
from omlx_server.models.adapters.files import check_adapter, read_adapter
from omlx_server.models.adapters.registry import AdapterPlaces, AdapterRegistry

PARAMETERS = {"rank": 4, "scale": 20.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
GOOD = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": PARAMETERS}


def save(directory: Path, config: Any = GOOD, numbers: int = 8, weights: bytes = b"") -> Path:
    """An adapter of two matrices of float16, for one layer."""
    header = {
        "x.lora_a": {"dtype": "F16", "shape": [2, 4], "data_offsets": [0, 16]},
        "x.lora_b": {"dtype": "F16", "shape": [4, 1], "data_offsets": [16, 24]},
    }
    head = json.dumps(header).encode()
    directory.mkdir(parents=True)
    (directory / CONFIG).write_text(json.dumps(config))
    content = len(head).to_bytes(8, "little") + head + bytes([numbers]) * 24
    (directory / WEIGHTS).write_bytes(weights or content)
    return directory


def places(tmp_path: Path, default: str = "") -> AdapterPlaces:
    return AdapterPlaces(tmp_path / "model", ("org/a", "a"), tmp_path / "more", default)


# -- where they are ----------------------------------------------------------------------


def test_they_are_beside_a_model_and_in_folders_of_its_names(tmp_path: Path) -> None:
    beside = save(tmp_path / "model" / "adapters" / "one")
    save(tmp_path / "more" / "org" / "a" / "one")
    own = save(tmp_path / "more" / "org" / "a" / "two")
    short = save(tmp_path / "more" / "a" / "three")
    save(tmp_path / "more" / "b" / "others")
    (tmp_path / "model" / "adapters" / "empty").mkdir()
    for name in ("none", ".hidden", "with space"):
        save(tmp_path / "model" / "adapters" / name)
    assert places(tmp_path).all() == {"one": beside, "three": short, "two": own}
    assert AdapterPlaces(tmp_path / "nothing", ("x",)).all() == {}


def test_a_model_whose_name_leads_elsewhere_finds_none_there(tmp_path: Path) -> None:
    save(tmp_path / "secret" / "one")
    for name in ("../secret", "..", "a/../../secret", "/", ""):
        found = AdapterPlaces(tmp_path / "model", (name,), tmp_path / "more")
        (tmp_path / "more").mkdir(exist_ok=True)
        assert found.all() == {}


@pytest.mark.parametrize("name", ["../secret/one", "/etc", "", "none", ".", "..", "one/", "ONE"])
def test_a_name_is_looked_up_and_never_a_path(name: str, tmp_path: Path) -> None:
    save(tmp_path / "model" / "adapters" / "one")
    save(tmp_path / "model" / "secret" / "one")
    if name in ("", "none"):
        assert AdapterRegistry().find(places(tmp_path), name) is None
        return
    with pytest.raises(AdapterNotFound, match="It has: one"):
        AdapterRegistry().find(places(tmp_path), name)


def test_the_default_is_a_name_or_a_path(tmp_path: Path) -> None:
    files = AdapterRegistry()
    save(tmp_path / "model" / "adapters" / "one")
    outside = save(tmp_path / "somewhere" / "mine")
    for default, name in (("one", "one"), (str(outside), "mine")):
        own = places(tmp_path, default)
        found = files.find(own, None)
        assert found is not None and found.name == name == own.default_name
        assert files.find(own, "none") is None
    assert list(places(tmp_path, str(outside)).all()) == ["mine", "one"]
    assert files.find(places(tmp_path), None) is None
    assert files.find(places(tmp_path, "none"), None) is None
    assert places(tmp_path, "none").default_name == ""


def test_those_who_ask_at_once_have_its_files_read_once(tmp_path: Path) -> None:
    files = AdapterRegistry()
    save(tmp_path / "model" / "adapters" / "one")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: files.find(places(tmp_path), "one"), range(8)))
    assert len(set(map(id, found))) == 1


# -- what their files say ----------------------------------------------------------------


def test_the_digest_is_of_both_files_and_the_same_in_any_place(tmp_path: Path) -> None:
    first = read_adapter(save(tmp_path / "a"), "a")
    assert (first.rank, first.scale, first.nbytes) == (4, 20.0, 48)
    assert first.shapes == {"x": ((2, 4), (4, 1))}
    again = read_adapter(save(tmp_path / "b"), "b")
    assert again == first and hash(again) == hash(first)
    louder = {**GOOD, "lora_parameters": {**PARAMETERS, "scale": 10.0}}
    assert read_adapter(save(tmp_path / "c", louder), "c") != first
    assert read_adapter(save(tmp_path / "d", numbers=9), "d") != first


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    files, path = AdapterRegistry(), save(tmp_path / "model" / "adapters" / "one")
    first = files.find(places(tmp_path), "one")
    assert files.find(places(tmp_path), "one") is first
    content = (path / WEIGHTS).read_bytes()
    os.utime(path / WEIGHTS, ns=(1, 1))
    same = files.find(places(tmp_path), "one")
    assert same == first and same is not first
    (path / WEIGHTS).write_bytes(content[:-1] + b"z")
    assert files.find(places(tmp_path), "one") != first


def with_(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "lora_parameters": {**PARAMETERS, **changes}}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**GOOD, "fine_tune_type": "full"}, "it is a whole model, not LoRA"),
        ({**GOOD, "fine_tune_type": "dora"}, "it is DoRA, and only LoRA can share a batch"),
        ({**GOOD, "fine_tune_type": "other"}, "its fine_tune_type is no LoRA: other"),
        ({"peft_type": "LORA", "r": 8}, "it is in PEFT's format"),
        ({"fine_tune_type": "lora"}, "has no lora_parameters"),
        (with_(rank=0), "rank must be a whole number above 0"),
        (with_(rank=True), "rank must be a whole number"),
        (with_(scale="loud"), "scale must be a number"),
        (with_(scale=10**400), "scale must be a number"),
        (with_(scale=None, alpha=16), "alpha is another framework's"),
        ([], "is no object"),
    ],
)
def test_a_config_that_can_not_be_used_is_refused(config: Any, says: str, tmp_path: Path) -> None:
    path = save(tmp_path / "a", config)
    with pytest.raises(AdapterUnusable, match=says) as refused:
        read_adapter(path, "a")
    assert refused.value.message.startswith("the adapter 'a' can't be used: ")
    assert refused.value.param == "adapter"
    with pytest.raises(AdapterUnusable, match=says):
        check_adapter(path, "a")


def test_an_older_config_without_a_type_is_lora(tmp_path: Path) -> None:
    assert read_adapter(save(tmp_path / "a", {"lora_parameters": PARAMETERS}), "a").rank == 4


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    for number, (name, content, says) in enumerate(
        (
            (WEIGHTS, b"", "damaged, or cut short"),
            (WEIGHTS, b"\x07" + b"\0" * 30, "damaged, or cut short|JSON"),
            (WEIGHTS, None, f"it has no {WEIGHTS}"),
            (CONFIG, b"{", "Expecting"),
            (CONFIG, None, f"it has no {CONFIG}"),
        )
    ):
        path = save(tmp_path / f"a{number}")
        (path / name).unlink()
        if content is not None:
            (path / name).write_bytes(content)
        for look in (read_adapter, check_adapter):
            with pytest.raises(AdapterUnusable, match=says):
                look(path, "a")
    path = save(tmp_path / "short")
    check_adapter(path, "a")
    (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:-1])
    for look in (read_adapter, check_adapter):
        with pytest.raises(AdapterUnusable, match="cut short"):
            look(path, "a")
