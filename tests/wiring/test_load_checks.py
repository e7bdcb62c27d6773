"""What is found before another model leaves for one that can't be loaded."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omlx_server.core.work import Work
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import LoadFailed, NoRoom
from omlx_server.wiring.load_checks import is_lasting
from omlx_server.wiring.model_factory import InstanceFactory
from tests.api.encoders.models import save_ranker
from tests.service.made import save_small
from tests.wiring.loaders import loading_of


def changed(path: Path, name: str, **fields: Any) -> None:
    file = path / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def cut(path: Path) -> None:
    file = path / "model.safetensors"
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 1)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "header": (lambda p: (p / "model.safetensors").write_bytes(bytes(64)), "no safetensors file"),
    "bytes": (cut, "model.safetensors is cut: "),
    "gone": (lambda p: (p / "model.safetensors").unlink(), "has no model*.safetensors"),
    "index": (lambda p: (p / "model.safetensors.index.json").write_text("{"), "can't be read"),
    "config": (lambda p: (p / "config.json").write_text("{"), "config.json"),
    "type": (lambda p: changed(p, "config.json", model_type="nope"), "Model type nope not support"),
    "shape": (lambda p: changed(p, "config.json", num_attention_heads=0), "ZeroDivisionError"),
    "size": (lambda p: changed(p, "config.json", hidden_size=32), "Expected shape (409, 32) but"),
    "layers": (
        lambda p: changed(p, "config.json", num_hidden_layers=3),
        "model.layers.2.input_lay",
    ),
    "tokenizer": (
        lambda p: (p / "tokenizer.json").write_text("{}"),
        "tokenizer.json can't be used",
    ),
    "template": (
        lambda p: changed(p, "tokenizer_config.json", chat_template="{% if %}"),
        "chat template is faulty: Expected",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_files_of_a_chat_model_tell_why_it_can_not_be_loaded(
    tmp_path: Path, fault: str
) -> None:
    save_small(tmp_path / "tiny")
    break_it, why = FAULTS[fault]

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny") as (loading, key):
            await loading.check(key)
            break_it(tmp_path / "tiny")
            with pytest.raises(LoadFailed) as failed:
                await loading.check(key)
            assert why in failed.value.message and "\n" not in failed.value.message
            assert not loading.instances.account.shares

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("bytes", "model.safetensors is cut"),
        ("tokenizer", "tokenizer.json"),
        ("config", "config.json"),
        ("layers", "has no weights called"),
    ],
)
def test_so_do_those_of_an_encoder(tmp_path: Path, fault: str, why: str) -> None:
    save_small(tmp_path / "tiny")
    save_ranker(tmp_path / "ranker")
    break_it, _ = FAULTS[fault]

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny", reranker=tmp_path / "ranker") as (loading, _):
            key = loading.known.first()[1].load_request.key
            await loading.check(key)
            break_it(tmp_path / "ranker")
            with pytest.raises(LoadFailed, match=why):
                await loading.check(key)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("error", "lasts"),
    [
        (ValueError("no kernel for a head of 7"), True),
        (RuntimeError("[malloc] Unable to allocate 9 bytes"), False),
        (RuntimeError("[METAL] Command buffer execution failed: Innocent Victim"), False),
        (RuntimeError("[metal::Device] Unable to build metal library"), True),
        (OSError("the disk is away"), False),
        (NoRoom("later"), False),
    ],
)
def test_what_only_a_load_shows_is_known_until_the_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, lasts: bool
) -> None:
    save_small(tmp_path / "tiny")

    def failing(*_: Any) -> Work[ModelInstance]:
        yield
        raise error

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny") as (loading, key):
            with monkeypatch.context() as patch:
                patch.setattr(InstanceFactory, "making", failing)
                with pytest.raises(LoadFailed) as failed:
                    await loading.load(key)
            if lasts:
                with pytest.raises(LoadFailed) as told:
                    await loading.check(key)
                assert told.value.message == failed.value.message
                os.utime(tmp_path / "tiny" / "model.safetensors")
            await loading.check(key)
            await loading.unload(await loading.load(key))

    asyncio.run(scene())


def test_a_cause_counts_as_the_error_does() -> None:
    error = LoadFailed("can't be loaded")
    error.__cause__ = OSError("the disk is away")
    assert not is_lasting(error)
