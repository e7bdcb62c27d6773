"""What a name stands for, and models that are fetched while a server runs, from a hub of ours."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.admin.asking import OWNER, told
from tests.api.harness import UNPROBED, Json, ServerProcess, serving, wait_for
from tests.models import fake_hub
from tests.models.fake_hub import Faults

NAME = "far/away"
LARGE = frozenset({"model.safetensors"})
FAULTS = Faults()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which the server fetches."""
    return tmp_path_factory.mktemp("fetched")


@pytest.fixture(scope="module")
def server(
    tiny_models: Path, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    files = {path.name: path.read_bytes() for path in (tiny_models / "org" / "tiny").iterdir()}
    sets = [f"models.dirs={models},{tiny_models}", "models.use_hf_cache=false", UNPROBED]
    sets += ['models.aliases={"small": "org/tiny", "lost": "no-such-model"}']
    with fake_hub.serve(NAME, files, LARGE, FAULTS) as (url, _):
        environ = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path_factory.mktemp("hf"))}
        home = tmp_path_factory.mktemp("fetching")
        with serving("org/tiny", home, *sets, environ=environ) as server:
            yield server


def resolved(server: ServerProcess, name: str) -> Json:
    found = told(server, "models/resolve", params={"name": name})
    assert found.pop("name") == name
    return found


def pulled(server: ServerProcess, name: str, status: int = 200) -> list[Json]:
    url = f"{server.url}/admin/models/pull"
    answer = server.http.post(url, json={"model": name}, headers=OWNER)
    assert answer.status_code == status, answer.text
    if status != 200:
        return [answer.json()["error"]]
    lines = answer.text.splitlines()
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [line[7:] for line in lines if line.startswith("event: ")] == [d["type"] for d in data]
    return data


def test_a_model_that_is_here_is_a_directory(server: ServerProcess, tiny_models: Path) -> None:
    path = str(tiny_models / "org" / "tiny")
    here = {"kind": "directory", "here": True, "names": ["org/tiny", "tiny"], "path": path}
    rest: Json = {"problem": None, "suggestions": []}
    assert resolved(server, "tiny") == {**here, **rest, "alias_of": None}
    assert resolved(server, "small") == {**here, **rest, "alias_of": "org/tiny"}


def test_what_could_be_fetched_is_of_the_hub_or_the_catalogue(server: ServerProcess) -> None:
    assert (resolved(server, "who/knows")["kind"], resolved(server, "who/knows")["here"]) == (
        *("hub", False),
    )
    starter = resolved(server, "starter")
    assert (starter["kind"], starter["here"], starter["path"]) == ("catalogue", False, None)


def test_an_address_and_a_short_name_stand_for_a_name_of_the_hub(server: ServerProcess) -> None:
    for name, meant in (
        ("https://huggingface.co/who/knows/tree/main", "who/knows"),
        ("qwen3-4b", "mlx-community/Qwen3-4B-4bit"),
    ):
        found = resolved(server, name)
        assert (found["kind"], found["alias_of"], found["here"]) == ("hub", meant, False)
    assert resolved(server, "hf.co/org/tiny")["names"] == ["org/tiny", "tiny"]


def test_an_unknown_name_has_suggestions(server: ServerProcess) -> None:
    found = resolved(server, "startre")
    assert (found["kind"], found["here"]) == ("unknown", False)
    assert "starter" in found["suggestions"]
    lost = resolved(server, "lost")
    assert (lost["kind"], lost["alias_of"]) == ("unknown", "no-such-model")


@pytest.mark.parametrize("name", ["/etc", "~", "../x", "./org/tiny", "a/b/c", "x\x00y"])
def test_a_path_is_no_name(server: ServerProcess, name: str) -> None:
    found = resolved(server, name)
    assert (found["kind"], found["path"]) == ("unknown", None)


@pytest.mark.parametrize("name", ["", "x" * 1025])
def test_a_name_is_needed(server: ServerProcess, name: str) -> None:
    error = told(server, "models/resolve", 400, params={"name": name})["error"]
    assert error["param"] == "name"


def test_a_model_is_fetched_with_progress_and_can_be_used(
    server: ServerProcess, models: Path
) -> None:
    *progress, last = pulled(server, NAME)
    assert {event["type"] for event in progress} <= {"progress"}
    assert last["type"] == "done" and last["model"] == NAME and last["checked"]
    size = (models / NAME / "model.safetensors").stat().st_size
    assert last["path"] == str(models / NAME) and last["fetched_bytes"] == size
    assert resolved(server, NAME)["here"]
    names = wait_for(
        lambda: {m["name"] for m in told(server, "models")["models"]} & {NAME}, seconds=20
    )
    assert names
    answer = server.post({**server.body("Hi", max_tokens=2), "model": NAME})
    assert answer.status_code == 200
    again = pulled(server, f"https://huggingface.co/{NAME}")[-1]
    assert (again["model"], again["fetched_bytes"]) == (NAME, 0)


def test_what_fails_is_an_event_with_the_reason(server: ServerProcess) -> None:
    *_, last = pulled(server, "who/knows")
    assert last["type"] == "error" and last["error"]["code"] == "model_unavailable"
    assert "who/knows was not found" in last["error"]["message"]
    [error] = pulled(server, "startre", 404)
    assert error["param"] == "model" and "starter" in error["message"]


def test_closing_the_connection_ends_a_fetch(server: ServerProcess, models: Path) -> None:
    """The hub sends the first bytes and then none; two fetches are the most at once."""
    url, body = f"{server.url}/admin/models/pull", {"model": NAME}
    (models / NAME / "model.safetensors").unlink()
    FAULTS.stall_after = 1000
    try:
        with (
            server.http.stream("POST", url, json=body, headers=OWNER) as first,
            server.http.stream("POST", url, json=body, headers=OWNER) as second,
        ):
            streams = [answer.iter_lines() for answer in (first, second)]
            assert [next(lines) for lines in streams] == ["event: progress"] * 2
            assert pulled(server, NAME, 429)[0]["code"] == "queue_full"
    finally:
        FAULTS.stall_after = 0
    # The hub gives a stalled connection up after a while: then the fetches notice that they were
    # ended, and give their places back.
    wait_for(lambda: server.http.post(url, json=body, headers=OWNER).status_code == 200)
    assert pulled(server, NAME)[-1]["type"] == "done"


def test_usual_models_and_the_hubs_say_whether_they_fit(server: ServerProcess) -> None:
    usual = {offer["name"]: offer for offer in told(server, "models/search")["models"]}
    assert usual["qwen3.5-122b-a10b"]["fit"] == "too large"
    assert usual["qwen3-0.6b"]["fit"] == "fits" and not usual["qwen3-0.6b"]["here"]
    assert [offer["best"] for offer in usual.values()].count(True) == 1
    searched = told(server, "models/search", params={"text": " qwen3-0.6b "})
    assert searched["problem"] is None
    assert [offer["name"] for offer in searched["models"]] == ["qwen3-0.6b"]
    FAULTS.error_code = "Broken"
    try:
        searched = told(server, "models/search", params={"text": "qwen3-0.6b"})
    finally:
        FAULTS.error_code = ""
    assert searched["problem"].startswith("The hub can't search")
    assert [offer["name"] for offer in searched["models"]] == ["qwen3-0.6b"]
    error = told(server, "models/search", 400, params={"text": "x" * 1025})["error"]
    assert error["param"] == "text"


def removed(server: ServerProcess, name: str, status: int = 200) -> Json:
    return told(server, "models/remove", status, method="POST", json={"model": name})


def test_a_model_is_removed_unless_it_is_loaded(server: ServerProcess, models: Path) -> None:
    assert pulled(server, NAME)[-1]["type"] == "done"
    (model,) = (m for m in told(server, "models")["models"] if m["name"] == NAME)
    assert (model["path"], model["fit"], model["aliases"]) == (str(models / NAME), "fits", [])
    body: Json = {"method": "POST", "json": {"model": NAME}}
    told(server, "models/load", **body)
    assert removed(server, NAME, 409)["error"]["message"].endswith("unload it first")
    told(server, "models/unload", **body)
    weights = (models / NAME / "model.safetensors").stat().st_size
    answer = removed(server, NAME)
    assert answer["model"] == NAME and answer["freed_bytes"] >= weights
    assert not (models / NAME).exists()
    assert NAME not in {m["name"] for m in told(server, "models")["models"]}
    removed(server, NAME, 404)


def test_what_the_server_was_started_with_is_not_removed(server: ServerProcess) -> None:
    assert "started with" in removed(server, "org/tiny", 409)["error"]["message"]


def test_what_is_broken_can_be_removed(server: ServerProcess, models: Path) -> None:
    (models / "org" / "broken").mkdir(parents=True)
    (models / "org" / "broken" / "config.json").write_text("{}")
    pulled(server, "org/tiny")  # and all is looked at anew
    assert "org/broken" in {m["name"] for m in told(server, "models")["models"]}
    removed(server, "org/broken")
    assert not (models / "org").exists()


def test_only_the_owner_may_fetch(server: ServerProcess) -> None:
    assert server.http.get(f"{server.url}/admin/models/resolve?name=a").status_code == 401
    url = f"{server.url}/admin/models/pull"
    assert server.http.post(url, json={"model": NAME}).status_code == 401
    assert server.http.get(f"{server.url}/admin/models/search").status_code == 401
    url = f"{server.url}/admin/models/remove"
    assert server.http.post(url, json={"model": NAME}).status_code == 401
