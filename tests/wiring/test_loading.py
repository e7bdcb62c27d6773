"""Models that can't be loaded, by the parts that a server is made of."""

import asyncio
import gc
import json
import re
from pathlib import Path
from typing import Any

import pytest

from omlx_server.api.models.served_model import ServedModel
from omlx_server.compute.model.loader import load as load_model
from omlx_server.compute.weights import weights
from omlx_server.compute.weights.gguf import tensors as gguf_tensors
from omlx_server.core.gguf.head import TensorPlace
from omlx_server.core.work import Work
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import Conflict, LoadFailed
from omlx_server.models.gguf.view import complete, view_of
from omlx_server.wiring.model_factory import InstanceFactory
from tests.adapters import save_adapter
from tests.api.conftest import CHATML
from tests.compute.headed import save_headed
from tests.engine.running import collect, request
from tests.gguf_models import write_model
from tests.service.made import save_small
from tests.text import makers
from tests.tiny_models import make_model, save_tiny
from tests.wiring.loaders import loading_of


@pytest.mark.parametrize("broken", ["model.safetensors", "tokenizer.json"])
def test_a_failure_is_told_once(tmp_path: Path, broken: str) -> None:
    """Weights and tokenizer are read side by side. With broken weights the tokenizer fails, too."""
    save_small(tmp_path / "tiny")
    (tmp_path / "tiny" / "tokenizer.json").write_text("{}")
    (tmp_path / "tiny" / broken).write_text("{}")
    unasked: list[dict[str, Any]] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: unasked.append(said))
        async with loading_of(tmp_path / "tiny") as (loading, key):
            for _ in range(2):
                with pytest.raises(LoadFailed, match="the model 'tiny' can't be loaded"):
                    await loading.load(key)
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(scene())
    gc.collect()
    assert unasked == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "olmo"}, "needs a package"),
    ({"model_type": "never_heard_of"}, "Model type never_heard_of not supported"),
    ({"rope_scaling": {"rope_type": "llama3"}}, "KeyError: 'factor'"),
    ({"num_attention_heads": 0}, "ZeroDivisionError"),
]


def test_the_reason_is_one_line(tmp_path: Path) -> None:
    """Whatever the class of the model raises, the process and its other models go on."""
    save_small(tmp_path / "tiny")
    file = tmp_path / "tiny" / "config.json"
    right = file.read_text()

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny") as (loading, key):
            for config, why in WRONG:
                file.write_text(json.dumps({**json.loads(right), **config}))
                with pytest.raises(LoadFailed, match=re.escape(why)) as failed:
                    await loading.load(key)
                assert "\n" not in failed.value.message
            file.write_text(right)
            model = await loading.load(key)
            await loading.unload(model)

    asyncio.run(scene())


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_a_load_tells_the_bytes_that_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A look at a GGUF file before it is loaded reads no more than a tensor of it."""
    monkeypatch.setattr(weights, "_SLICE_BYTES", 1 << 12)
    if form == "gguf":
        path = view_of(write_model(tmp_path, "qwen3", ["Q8_0"]).file, tmp_path / "views")
        complete(path)
    else:
        save_small(path := tmp_path / "tiny")
    read, tensors = list[int](), list[str]()
    parameter = gguf_tensors._parameter

    def noting_tensor(stream: Any, place: TensorPlace, *more: Any) -> Any:
        tensors.append(place.name)
        return parameter(stream, place, *more)

    monkeypatch.setattr(gguf_tensors, "_parameter", noting_tensor)

    async def scene() -> None:
        async with loading_of(path) as (loading, key):
            await loading.check(key)
            assert len(tensors) == (form == "gguf")
            source, at_begin = loading.known.source(key), len(tensors)
            await loading.unload(await loading.load(key, read.append))
            steps = [nbytes for nbytes in read if nbytes]
            assert len(steps) >= max(5, len(tensors) - at_begin)
            assert 0.9 * source.nbytes < sum(read)
            assert max(read) < source.nbytes / 2

    asyncio.run(scene())


def test_makers_defaults_that_can_not_be_read_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_small(tmp_path / "tiny")
    (tmp_path / "tiny" / "generation_config.json").write_text("{")

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny") as (loading, key):
            await loading.unload(await loading.load(key))

    asyncio.run(scene())
    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len([text for text in told if "generation_config.json can't be read" in text]) == 1


def test_a_version_that_comes_during_a_load_is_not_taken_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are named by the fingerprint, which is computed before the weights are read."""
    save_small(tmp_path / "tiny")
    file = tmp_path / "tiny" / "model.safetensors"
    making = InstanceFactory.making

    def updated_meanwhile(*arguments: Any) -> Work[ModelInstance]:
        replaced(file)
        return making(*arguments)

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny") as (loading, key):
            with monkeypatch.context() as patch:
                patch.setattr(InstanceFactory, "making", updated_meanwhile)
                with pytest.raises(LoadFailed, match="have changed since they were read"):
                    await loading.load(key)
            assert not loading.instances.account.shares
            await loading.unload(await loading.load(key))

    asyncio.run(scene())


def test_a_model_whose_files_changed_makes_no_archive(tmp_path: Path) -> None:
    """It would carry the fingerprint of the new files, with blocks of the old ones."""
    save_small(tmp_path / "tiny")

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny") as (loading, key):
            served = await loading.load(key)
            assert isinstance(served, ServedModel)
            prompt = served.tokenizer.encode("The weather in Paris " * 30)
            before = await collect(await served.engine.submit(request("a", prompt, 10)))
            replaced(tmp_path / "tiny" / "model.safetensors")
            assert await collect(await served.engine.submit(request("b", prompt, 10))) == before
            with pytest.raises(Conflict, match="have changed since they were read"):
                await served.archives.export(tuple(prompt), b"")
            await loading.unload(served)

    asyncio.run(scene())


def replaced(file: Path) -> None:
    """As an update replaces a file: under its name is another one from now on."""
    new = file.with_name("new")
    new.write_bytes(file.read_bytes()[:-64] + bytes(64))
    new.replace(file)


def test_collections_do_not_look_through_what_was_loaded(tmp_path: Path) -> None:
    """They hold the GIL for as long as they take, and requests of many messages start them."""
    save_small(tmp_path / "tiny")

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny") as (loading, key):
            gc.unfreeze()
            model = await loading.load(key)
            assert len(gc.get_objects()) < gc.get_freeze_count() / 50
            await loading.unload(model)
            assert len(gc.get_objects()) < gc.get_freeze_count() / 50

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("default", "why"),
    [
        ("wide", "the adapter 'wide' can't be used: model.layers."),
        ("nope", "The model 'tiny' has no adapter 'nope'. It has: good, wide."),
        ("./nowhere", "the adapter 'nowhere' can't be used: it has no adapter_config.json"),
        ("good", ""),
    ],
)
def test_a_model_is_not_loaded_with_a_default_adapter_that_can_not_be_used(
    default: str, why: str, tmp_path: Path
) -> None:
    save_small(tmp_path / "tiny")
    beside = tmp_path / "tiny" / "adapters"
    save_adapter(beside / "good", load_model(tmp_path / "tiny").model)
    save_adapter(beside / "wide", make_model("llama", hidden_size=32)[0])

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny", adapter=default) as (loading, key):
            if why:
                with pytest.raises(LoadFailed, match=re.escape(why)) as failed:
                    await loading.load(key)
                assert "\n" not in failed.value.message
                assert not loading.instances.account.shares
                return
            model = await loading.load(key)
            assert isinstance(model, ServedModel)
            told = await model.engine.ask(lambda own: [a.name for a in own.adapters.weights.loaded])
            assert told == ["good"]
            await loading.unload(model)

    asyncio.run(scene())


def save_drafter(path: Path, family: str) -> None:
    makers.save(path, family)
    save_tiny(path, "gemma3_text", vocab_size=makers.FAMILIES[family]().get_vocab_size())


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    """Before anything is loaded."""
    save_small(tmp_path / "tiny")
    save_drafter(tmp_path / "other", "llama")

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny", "draft", "other") as (loading, key):
            why = "the model 'tiny' can't be loaded: the draft model other has another vocabulary"
            with pytest.raises(LoadFailed, match=re.escape(why)) as failed:
                await loading.load(key)
            assert "\n" not in failed.value.message
            assert not loading.instances.account.shares

    asyncio.run(scene())


def test_so_is_one_that_is_not_there(tmp_path: Path) -> None:
    save_small(tmp_path / "tiny")

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny", "draft", "nowhere") as (loading, key):
            with pytest.raises(LoadFailed, match="There is no model 'nowhere'"):
                await loading.load(key)

    asyncio.run(scene())


async def answered(model: Path, mode: str, drafter: str = "") -> tuple[str, int]:
    """The greedy answer of a model, and the bytes of weights on the account with it."""
    async with loading_of(model, mode, drafter) as (loading, key):
        served = await loading.load(key)
        assert isinstance(served, ServedModel)
        prompt = served.tokenizer.encode("The weather in Paris")
        generation = await served.engine.submit(request("a", prompt, 40))
        answer = served.tokenizer.decode(await collect(generation))
        weights = loading.instances.account.weights
        assert weights == served.engine.weight_bytes
        await loading.unload(served)
        assert not loading.instances.account.shares
    return answer, weights


def test_a_draft_model_changes_what_is_held_and_no_answer(tmp_path: Path) -> None:
    save_small(tmp_path / "tiny")
    save_drafter(tmp_path / "small", "byte_level")
    alone, own = asyncio.run(answered(tmp_path / "tiny", "draft"))
    both = own + load_model(tmp_path / "small").weight_bytes
    assert asyncio.run(answered(tmp_path / "tiny", "draft", "small")) == (alone, both)


def test_so_do_heads_where_the_mode_wants_them(tmp_path: Path) -> None:
    model = makers.save(tmp_path / "headed", "byte_level", CHATML)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    heads = save_headed(model, "qwen3_5", vocab_size=vocab)
    alone, own = asyncio.run(answered(model, "auto"))
    both = own + sum(array.nbytes for array in heads.values())
    assert asyncio.run(answered(model, "heads")) == (alone, both)


def test_the_pool_makes_room_for_both(tmp_path: Path) -> None:
    save_small(tmp_path / "tiny")
    save_drafter(tmp_path / "small", "byte_level")
    files = [tmp_path / name / "model.safetensors" for name in ("tiny", "small")]

    async def scene() -> None:
        async with loading_of(tmp_path / "tiny", "draft", "small") as (loading, _):
            [listed] = loading.known.first()
            assert listed.load_request.nbytes == sum(file.stat().st_size for file in files)

    asyncio.run(scene())


def test_a_reranker_has_no_draft_model(tmp_path: Path) -> None:
    """It drafts nothing."""
    save_small(tmp_path / "tiny")
    save_small(tmp_path / "ranking")
    save_drafter(tmp_path / "small", "byte_level")

    async def weights() -> int:
        places = tmp_path / "tiny", "draft", "small", tmp_path / "ranking"
        async with loading_of(*places) as (loading, _):
            [_, listed] = loading.known.first()
            served = await loading.load(listed.load_request.key)
            held = loading.instances.account.weights
            await loading.unload(served)
        return held

    assert asyncio.run(weights()) == load_model(tmp_path / "ranking").weight_bytes
