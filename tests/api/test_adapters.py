"""Adapters over HTTP: asked for by name, several at once, each as the model that it is fused into;
found in the cache by their own requests alone, also after a restart; listed, and refused."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from openai import OpenAI

from tests.adapters import DENSE, fuse, save_adapter, wear, write
from tests.api.harness import (
    ADMIN_TOKEN,
    Json,
    ServerProcess,
    assert_envelope,
    cached,
    serving,
    text_of,
)
from tests.api.small_models import ask, save, sets
from tests.text import makers
from tests.tiny_models import make_model

STORY = "This is the system prompt of an agent that is asked all day long. " * 6
WARM = ("cache.cold_write_through=true", "adapters.default=first", "cache.block_tokens=16")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two adapters beside it, one more elsewhere, and some that can't be used; and
    the models that these are fused into."""
    root = tmp_path_factory.mktemp("adapted")
    model = save(root / "models" / "org" / "a", "llama")
    beside = model / "adapters"
    for seed, path in enumerate((beside / "first", beside / "second", elsewhere(root) / "third")):
        save_adapter(path, tiny(), seed=seed, rank=4 + 4 * (seed // 2), keys=DENSE)
        fused = dict(tree_flatten(fuse(wear(tiny(), path)).parameters()))
        saved = save(root / "models" / "fused" / path.name, "llama")
        mx.save_safetensors(str(saved / "model.safetensors"), fused, metadata={"format": "mlx"})
    save_adapter(root / "models" / "fused" / "third" / "adapters" / "latest", tiny(), seed=9)
    wide, _ = make_model("llama", hidden_size=32)
    save_adapter(beside / "wide", wide)
    write(beside / "whole", {"fine_tune_type": "full"}, {"x": mx.zeros(1)})
    (root / "models" / "adapters").mkdir()
    save_adapter(root / "outside", tiny())
    return root


def elsewhere(root: Path) -> Path:
    return root / "others" / "org" / "a"


def tiny() -> nn.Module:
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    return make_model("llama", vocab_size=vocab)[0]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


def settings(directory: Path, *more: str) -> list[str]:
    return sets(directory / "models", f"adapters.directory={directory / 'others'}", *more)


@pytest.fixture(scope="module")
def server(directory: Path, home: Path) -> Iterator[ServerProcess]:
    aliases = '[models]\naliases = {writer = "org/a:second"}\n'
    with serving("org/a", home, *settings(directory, *WARM), config=aliases) as server:
        yield server


def answer(server: ServerProcess, model: str, **fields: object) -> Json:
    found = ask(server, model, STORY, **{"max_tokens": 24, "ignore_eos": True, **fields})
    assert found.status_code == 200, found.text
    told: Json = found.json()
    return told


def test_every_adapter_answers_as_the_model_that_it_is_fused_into(server: ServerProcess) -> None:
    """All at once, in one batch. The plain name means the default adapter."""
    asked = {
        "org/a": "fused/first",
        "a:second": "fused/second",
        "org/a:third": "fused/third",
        "writer": "fused/second",
    }
    with ThreadPoolExecutor(8) as pool:
        adapted = pool.map(lambda name: answer(server, name), asked)
        texts = {name: text_of(told) for name, told in zip(asked, adapted, strict=True)}
        plain = text_of(answer(server, "org/a", adapter="none"))
    assert texts == {name: text_of(answer(server, fused)) for name, fused in asked.items()}
    assert len({*texts.values(), plain}) == 4
    fields = {"org/a": {"adapter": "second"}, "a:second": {"adapter": "second"}}
    for name, more in fields.items():
        told = answer(server, name, **more)
        assert text_of(told) == texts["a:second"]
        assert cached(told) > 100
        assert told["model"] == name
    assert in_memory(server) == ["first", "second", "third"]


def test_the_tag_latest_is_an_adapter_only_of_a_model_that_has_one(server: ServerProcess) -> None:
    asked = {"a:latest": "a", "a:second:latest": "a:second", "writer:latest": "a:second"}
    for name, plain in asked.items():
        assert text_of(answer(server, name)) == text_of(answer(server, plain))
    named = text_of(answer(server, "fused/third:latest"))
    assert named == text_of(answer(server, "fused/third", adapter="latest"))
    assert named != text_of(answer(server, "fused/third"))
    told = server.http.get(f"{server.url}/v1/models/fused/third:latest").json()
    assert (told["parent"], told["root"]) == ("fused/third", "fused/third:latest")


def test_so_does_one_that_is_held_to_a_schema_and_one_whose_beginning_is_dropped(
    server: ServerProcess,
) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 5}
    held = {"json_schema": schema, "ignore_eos": False, "max_tokens": 40}
    found = [text_of(answer(server, name, **held)) for name in ("a:second", "fused/second")]
    assert found[0] == found[1]
    assert found[0].startswith("[")
    turns = [{"role": "user", "content": f"{n}. {STORY}"} for n in range(30)]
    answers = [{"role": "assistant", "content": f"So {n} it is."} for n in range(30)]
    history = [one for both in zip(turns, answers, strict=True) for one in both]
    for end in (-3, -1):  # the second begins where the first one was cut, and finds its blocks
        asked = {"messages": history[:end], "context_overflow": "rolling"}
        told = [answer(server, name, **asked) for name in ("a:second", "fused/second")]
        assert text_of(told[0]) == text_of(told[1])
        dropped = [one["usage"]["prompt_tokens_details"]["dropped_messages"] for one in told]
        assert dropped[0] == dropped[1] > 0
    assert cached(told[0]) == cached(told[1]) > 100


def test_its_prefixes_are_its_own(server: ServerProcess) -> None:
    own = {"messages": [{"role": "user", "content": f"Own. {STORY}"}]}
    for name in ("org/a:first", "org/a:second"):
        cold = answer(server, name, **own)
        assert cached(cold) < 20  # what all prompts begin with
        warm = answer(server, name, **own)
        assert (text_of(warm), cached(warm) > 100) == (text_of(cold), True)
    assert cached(answer(server, "org/a", adapter="none", **own)) < 20
    assert known(server, "org/a:third", **own) < 20
    assert known(server, "org/a:second", **own) > 100


def in_memory(server: ServerProcess) -> object:
    url, headers = f"{server.url}/admin/models", {"x-admin-token": ADMIN_TOKEN}
    told: Json = server.http.get(url, headers=headers).json()
    [names] = [one["adapters"] for one in told["models"] if one["name"] == "org/a"]
    return names


def known(server: ServerProcess, model: str, **fields: object) -> int:
    body = {**server.body(STORY), "model": model, **fields}
    found: Json = server.http.post(f"{server.url}/v1/cache/probe", json=body).json()
    return int(found["cached_tokens"])


def test_an_archive_of_an_adapters_prefix_is_taken_in_by_that_adapter_alone(
    server: ServerProcess,
) -> None:
    answer(server, "org/a:second")
    body = {**server.body(STORY), "model": "org/a:second"}
    archive = server.http.post(f"{server.url}/v1/cache/export", json=body)
    assert archive.status_code == 200, archive.text

    def take_in(model: str) -> int:
        url = f"{server.url}/v1/cache/import?model={model}&cache_salt=mine"
        headers = {"content-type": "application/x-tar"}
        taken = server.http.post(url, content=archive.content, headers=headers)
        if taken.status_code != 200:
            assert "another model, adapter or KV format" in assert_envelope(taken, 400)["message"]
            return 0
        return int(taken.json()["added"])

    assert take_in("org/a:third") == take_in("a") == 0
    assert take_in("a:second") > 4
    assert known(server, "a:second", cache_salt="mine") > 100
    assert known(server, "a", cache_salt="mine") < 20


def test_a_pin_of_an_adapters_prefix_is_listed_and_ended_though_the_adapter_is_gone(
    server: ServerProcess, directory: Path
) -> None:
    passing = directory / "models" / "org" / "a" / "adapters" / "passing"
    shutil.copytree(directory / "outside", passing)
    body = {**server.body(STORY), "model": "a:passing"}
    made = server.http.post(f"{server.url}/v1/cache/pin", json=body).json()
    assert made["model"] == "org/a:passing"
    shutil.rmtree(passing)
    others = f"{server.url}/v1/cache/pins?cache_salt=other"
    assert server.http.get(others).json()["data"] == []
    listed = server.http.get(f"{server.url}/v1/cache/pins").json()["data"]
    assert [pin["id"] for pin in listed] == [made["id"]]
    assert server.http.delete(f"{server.url}/v1/cache/pins/{made['id']}").status_code == 200
    assert server.http.get(f"{server.url}/v1/cache/pins").json()["data"] == []


def test_who_resets_what_is_cached_under_a_salt_resets_it_for_all_adapters(
    server: ServerProcess,
) -> None:
    for salt in ("one", "two"):
        answer(server, "a:second", cache_salt=salt)
        assert known(server, "a:second", cache_salt=salt) > 100
    url = f"{server.url}/v1/cache/reset?cache_salt=one"
    dropped = server.http.post(url).json()["dropped"]
    assert sum(one["blocks"] for one in dropped) > 4
    assert known(server, "a:second", cache_salt="one") == 0
    assert known(server, "a:second", cache_salt="two") > 100


def test_adapters_are_listed_as_models_with_their_parent(server: ServerProcess) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        listed = {model.id: model.to_dict() for model in client.models.list()}
        parents = {name: row["parent"] for name, row in listed.items()}
        roots = {"org/a": ("org/a", "a"), "org/a:second": ("org/a:second", "a:second", "writer")}
        for root, names in roots.items():
            assert {name for name, row in listed.items() if row["root"] == root} == set(names)
        names = ("first", "second", "third", "wide", "whole")
        for model in ("org/a", "a"):
            assert {f"{model}:{name}" for name in names} <= parents.keys()
            assert parents[model] is None
            assert parents[f"{model}:third"] == model
        assert parents["writer"] == "org/a"
        assert client.models.retrieve("org/a:second").id == "org/a:second"
        assert client.models.retrieve("writer").to_dict() == listed["writer"]
    unknown = server.http.get(f"{server.url}/v1/models/org/a:nope")
    assert assert_envelope(unknown, 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("model", "fields", "status", "code", "says"),
    [
        ("a:nope", {}, 404, "adapter_not_found", "no adapter 'nope'. It has: first, second"),
        ("a", {"adapter": "nope"}, 404, "adapter_not_found", "no adapter 'nope'"),
        ("a", {"adapter": "../../../outside"}, 404, "adapter_not_found", "no adapter"),
        ("a", {"adapter": "/etc"}, 404, "adapter_not_found", "no adapter '/etc'"),
        ("a:../third", {}, 404, "adapter_not_found", "no adapter '../third'"),
        ("fused/first", {"adapter": "second"}, 404, "adapter_not_found", "It has none."),
        ("a:first", {"adapter": "second"}, 400, None, "asks for the adapter 'first'"),
        ("a:wide", {}, 400, "adapter_unusable", "the model needs (64, 4) and (4, "),
        ("a:whole", {}, 400, "adapter_unusable", "a whole model, not LoRA"),
        ("nobody:first", {}, 404, "model_not_found", "'nobody:first' does not exist"),
        ("a:", {}, 404, "model_not_found", "'a:' does not exist"),
        (":first", {}, 404, "model_not_found", "':first' does not exist"),
        ("a", {"adapter": 7}, 400, None, "valid string"),
    ],
)
def test_what_can_not_be_had_is_refused(
    model: str, fields: Json, status: int, code: str | None, says: str, server: ServerProcess
) -> None:
    refused = assert_envelope(ask(server, model, **fields), status)
    assert refused["code"] == code
    assert says in refused["message"]


def test_the_other_apis_know_adapters_too(server: ServerProcess) -> None:
    expected = text_of(answer(server, "a:second"))
    told = {"role": "user", "content": STORY}
    base = {"model": "a", "adapter": "second", "temperature": 0}
    limit = {"max_output_tokens": 24, "ignore_eos": True}
    response = server.http.post(
        f"{server.url}/v1/responses", json={**base, **limit, "input": [told]}
    ).json()
    assert response["output"][-1]["content"][0]["text"] == expected
    message = server.http.post(
        f"{server.url}/v1/messages",
        json={**base, "max_tokens": 24, "ignore_eos": True, "messages": [told]},
    ).json()
    assert message["content"][0]["text"] == expected
    scored = {"prompt": STORY, "echo": True, "logprobs": 1, "max_tokens": 0, "model": "a:second"}
    fused = {**scored, "model": "fused/second"}
    logs = [
        server.http.post(f"{server.url}/v1/completions", json=body).json()["choices"][0]["logprobs"]
        for body in (scored, fused)
    ]
    assert logs[0]["token_logprobs"][1:] == pytest.approx(logs[1]["token_logprobs"][1:], abs=1e-3)


def test_what_embeds_has_no_adapters(server: ServerProcess) -> None:
    body = {"model": "org/a:first", "input": "x"}
    refused = server.http.post(f"{server.url}/v1/embeddings", json=body)
    assert "knows no adapters" in assert_envelope(refused, 400)["message"]
    unknown = server.http.post(f"{server.url}/v1/embeddings", json={**body, "model": "all:22m"})
    assert "'all:22m' does not exist" in assert_envelope(unknown, 404)["message"]


def test_a_model_is_loaded_with_the_adapter_that_its_name_asks_for(server: ServerProcess) -> None:
    def order(verb: str, name: str, code: int = 200) -> Json:
        url = f"{server.url}/admin/models/{verb}"
        body, token = {"model": name}, {"x-admin-token": ADMIN_TOKEN}
        answer = server.http.post(url, headers=token, json=body)
        assert answer.status_code == code, answer.text
        found: Json = answer.json()
        return found

    order("unload", "writer")
    loaded = order("load", "writer")
    assert (loaded["name"], loaded["state"]) == ("org/a", "loaded")
    assert loaded["adapters"] == ["first", "second"]  # the first is the default one
    assert order("load", "a:third")["adapters"] == ["first", "second", "third"]
    assert order("pin", "a:third")["pinned"]
    order("unload", "org/a")
    for adapter, code, error in (
        ("nobody", 404, "adapter_not_found"),
        ("whole", 400, "adapter_unusable"),
    ):
        assert order("load", f"org/a:{adapter}", code)["error"]["code"] == error
    states = server.http.get(f"{server.url}/admin/models", headers={"x-admin-token": ADMIN_TOKEN})
    (state,) = (one["state"] for one in states.json()["models"] if one["name"] == "org/a")
    assert state == "absent"
    assert order("load", "a:none")["adapters"] == ["first"]


def test_after_a_restart_an_adapter_finds_its_own_blocks(
    server: ServerProcess, directory: Path, home: Path
) -> None:
    """The last test: the server of the others ends here."""
    before = text_of(answer(server, "a:third"))
    server.stop()
    with serving("org/a", home, *settings(directory, *WARM)) as again:
        told = answer(again, "org/a", adapter="third")
        assert (text_of(told), cached(told) > 100) == (before, True)
