"""Several models behind one address, on a real server: found on the disk, loaded when a request
names them, sent away for each other, by hand or after a while."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tests.api.harness import (
    CHAT,
    Json,
    ServerProcess,
    assert_envelope,
    serving,
    text_of,
    wait_for,
)
from tests.api.small_models import (
    ask,
    configured,
    directory,
    order,
    save,
    server,
    sets,
    states,
    told,
)

__all__ = ["directory", "server"]
Saves = Callable[..., Path]


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where there is a model `big`, of 150 MB, which takes a while to load."""
    root = tmp_path_factory.mktemp("heavy")
    save(root / "big", "llama", hidden_size=768, num_hidden_layers=4, intermediate_size=3072)
    return root


@pytest.fixture(scope="module")
def roomy(
    directory: Path, heavy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server that knows `big` as well."""
    dirs = f"models.dirs={directory},{heavy}"
    with serving("org/a", tmp_path_factory.mktemp("roomy"), *sets(directory), dirs) as server:
        yield server


@pytest.fixture(scope="module")
def plain(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of which the config file is empty, and may be written. Who does so empties it."""
    with serving("org/a", tmp_path_factory.mktemp("plain"), *sets(directory)) as server:
        yield server


def memory_of(server: ServerProcess) -> Json:
    """As the engine has told it last, which it does once a second at rest."""
    found: Json = server.http.get(f"{server.url}/health").json()["memory"]
    return found


def test_every_model_on_the_disk_is_listed_with_its_names(server: ServerProcess) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        found = {model.id for model in client.models.list()}
        assert {"org/a", "a", "org/b", "b", "small", "tiny", "org/c", "org/ranker"} <= found
        assert not found & {"org/empty", "empty"}
        assert client.models.retrieve("tiny").id == "tiny"
    assert states(server)["org/a"] == "loaded"


def test_a_request_loads_the_model_that_it_names(server: ServerProcess) -> None:
    answers = {name: text_of(ask(server, name).json()) for name in ("org/a", "org/b", "c")}
    assert len(set(answers.values())) == 3, "each has its own answer"
    for alias in ("small", "tiny", "b"):
        answer = ask(server, alias).json()
        assert (text_of(answer), answer["model"]) == (answers["org/b"], alias)
    assert [states(server)[f"org/{name}"] for name in "abc"] == ["loaded"] * 3
    health = server.http.get(f"{server.url}/health").json()
    assert {engine["model"] for engine in health["engines"]} == {"org/a", "org/b", "org/c"}
    wait_for(lambda: abs(memory_of(server)["drift"]) < 0.02)


def test_a_stream_loads_it_too(server: ServerProcess) -> None:
    order(server, "unload", "c")
    whole = text_of(ask(server, "c", "Sing").json())
    order(server, "unload", "c")
    body = {**server.body("Sing", max_tokens=6), "model": "c", "stream": True}
    with server.http.stream("POST", f"{server.url}{CHAT}", json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    deltas = [json.loads(line)["choices"] for line in lines if line != "[DONE]"]
    assert "".join(c[0]["delta"].get("content") or "" for c in deltas if c) == whole


def test_a_name_that_is_not_known_changes_nothing(server: ServerProcess) -> None:
    before = states(server)
    for name in ("org/none", "../org/b", "", "org", "empty", str(Path.home()), "b" * 5000):
        assert_envelope(ask(server, name), 404 if 0 < len(name) <= 1024 else 400)
    assert states(server) == before


def test_a_model_that_comes_while_the_server_runs_is_found(
    server: ServerProcess, directory: Path
) -> None:
    assert ask(server, "org/late").status_code == 404
    save(directory / "org" / "late", "llama", num_hidden_layers=1)
    wait_for(lambda: ask(server, "org/late").status_code == 200)


def test_models_for_other_routes_are_told_apart(server: ServerProcess) -> None:
    error = assert_envelope(ask(server, "org/ranker"), 400)
    assert "/v1/rerank" in error["message"]
    ranks = {"model": "ranker", "query": "water", "documents": ["the sea", "a chair"]}
    answer = server.http.post(f"{server.url}/v1/rerank", json=ranks)
    assert answer.status_code == 200, answer.text
    assert states(server)["org/ranker"] == "loaded"
    assert order(server, "unload", "ranker").json()["state"] == "absent"


def test_an_alias_of_none_says_what_it_stands_for(server: ServerProcess) -> None:
    error = assert_envelope(ask(server, "lost"), 404)
    assert "'lost' does not exist: the name stands for 'org/nope', which is not" in error["message"]
    assert "`omlx-server pull org/nope` gets it" in error["message"]
    assert "stands for" not in assert_envelope(ask(server, "org/nope"), 404)["message"]
    short = assert_envelope(ask(server, "qwen3-4b"), 404)["message"]
    assert "`omlx-server pull mlx-community/Qwen3-4B-4bit` gets it" in short


def test_one_that_can_not_be_loaded_says_why_and_harms_nobody(server: ServerProcess) -> None:
    for answer in (ask(server, "broken"), order(server, "load", "org/broken"), one(server)):
        error = assert_envelope(answer, 500)
        assert error["code"] == "model_load_failed"
        assert "can't be loaded: model.safetensors is cut, or no safetens" in error["message"]
    item = told(server)["org/broken"]
    assert item["state"] == "failed" and item["problem"] in error["message"]
    assert ask(server, "org/a").status_code == 200
    listed = server.http.get(f"{server.url}/v1/models").json()["data"]
    assert not {"org/broken", "broken"} & {model["id"] for model in listed}


def one(server: ServerProcess) -> httpx.Response:
    return server.http.get(f"{server.url}/v1/models/broken")


def test_by_hand(server: ServerProcess) -> None:
    for _ in range(2):
        loaded = order(server, "load", "small").json()
        assert (loaded["name"], loaded["state"]) == ("org/b", "loaded")
    assert loaded["weight_bytes"] == pytest.approx(loaded["disk_bytes"], rel=0.02)
    for _ in range(2):
        left = order(server, "unload", "b").json()
        assert (left["state"], left["weight_bytes"]) == ("absent", None)
    assert_envelope(order(server, "load", "nobody"), 404)
    assert_envelope(order(server, "load", ""), 404)
    assert order(server, "pin", "b").json()["pinned"] is True
    assert order(server, "pin", "b", pinned=False).json()["pinned"] is False


def test_orders_need_the_token(server: ServerProcess) -> None:
    answer = server.http.post(f"{server.url}/admin/models/unload", json={"model": "a"})
    assert_envelope(answer, 401)
    assert states(server)["org/a"] == "loaded"


def test_a_model_in_use_is_unloaded_when_its_answers_have_ended(server: ServerProcess) -> None:
    alone = text_of(ask(server, "c", "A long song", max_tokens=600, ignore_eos=True).json())

    def scene() -> bool:
        """Whether the order came while the model was in use: a machine may pause before."""
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask, server, "c", "A long song", max_tokens=600, ignore_eos=True)
            wait_for(lambda: told(server)["org/c"]["in_use"] == 1 or asked.done())
            left = pool.submit(order, server, "unload", "c")
            wait_for(lambda: states(server)["org/c"] == "unloading" or left.done())
            in_time = not left.done()
            behind = pool.submit(ask, server, "c", "And another")
            assert text_of(asked.result().json()) == alone
            assert left.result().status_code == 200
            assert behind.result().status_code == 200
        assert states(server)["org/c"] == "loaded"
        return in_time

    assert any(scene() for _ in range(5))


def test_requests_that_come_together_load_it_once(server: ServerProcess) -> None:
    order(server, "unload", "b")
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: text_of(ask(server, "b").json()), range(12)))
    assert len(set(answers)) == 1
    assert server.log.count("org/b was loaded") >= 1


def test_one_at_a_time(directory: Path, tmp_path: Path) -> None:
    """The one that was used longest ago goes; a pinned one stays, and then nobody else comes."""
    with serving("org/a", tmp_path, *sets(directory, "models.max_loaded=2")) as server:
        expected = {name: text_of(ask(server, name).json()) for name in "abc"}
        assert states(server)["org/a"] == "absent"
        assert [states(server)[f"org/{name}"] for name in "bc"] == ["loaded"] * 2
        order(server, "pin", "b")
        assert text_of(ask(server, "a").json()) == expected["a"]
        assert states(server)["org/b"] == "loaded"
        order(server, "load", "c")
        order(server, "pin", "c")
        error = assert_envelope(ask(server, "a"), 503)
        assert error["code"] == "insufficient_memory" and "pinned" in error["message"]
        order(server, "pin", "c", pinned=False)
        with ThreadPoolExecutor(9) as pool:
            names = ["abc"[i % 3] for i in range(15)]
            found = list(pool.map(lambda name: text_of(ask(server, name).json()), names))
        assert found == [expected[name] for name in names]


def test_nobody_leaves_for_one_that_can_not_be_loaded(directory: Path, tmp_path: Path) -> None:
    unfit = save(tmp_path / "more" / "unfit", "llama", num_hidden_layers=1)
    config = json.loads((unfit / "config.json").read_text())
    (unfit / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    sets_ = sets(directory, f"models.dirs={directory},{tmp_path / 'more'}", "models.max_loaded=1")
    with serving("org/a", tmp_path, *sets_) as server:
        for _ in range(3):
            error = assert_envelope(ask(server, "unfit"), 500)
            assert "Missing 9 parameters: model.layers.1.input_layernorm" in error["message"]
            assert ask(server, "org/broken").status_code == 500
            assert states(server)["org/a"] == "loaded"
        assert told(server)["unfit"]["state"] == "failed"
        assert server.log.count("org/a was unloaded") == 0
        assert server.log.count("org/a was loaded") == 1
        shutil.rmtree(tmp_path / "more")
        wait_for(lambda: ask(server, "unfit").status_code == 404)
        message = assert_envelope(ask(server, "unfit"), 404)["message"]
        assert f"{tmp_path / 'more'} in models.dirs can't be read: No such file" in message


def test_who_is_not_used_leaves_and_comes_back(directory: Path, tmp_path: Path) -> None:
    own = 'idle_ttl_seconds = 1\npinned = ["c"]\noverrides = {"org/b" = {ttl = 0}}'
    with configured("org/a", tmp_path, directory, own) as server:
        wait_for(lambda: states(server)["org/c"] == "loaded")
        first = text_of(ask(server, "a").json())
        ask(server, "b")
        wait_for(lambda: states(server)["org/a"] == "absent")
        now = states(server)
        assert (now["org/b"], now["org/c"]) == ("loaded", "loaded")
        assert server.http.get(f"{server.url}/health/ready").status_code == 200
        assert text_of(ask(server, "a").json()) == first


def stored(server: ServerProcess) -> int:
    """How many blocks. Folders may go while they are looked through."""
    directory = server.config.parent / "kv"
    names = [name for _, _, files in os.walk(directory) for name in files]
    return sum(name.endswith(".safetensors") for name in names)


def test_a_reset_forgets_what_is_stored_of_models_that_left(plain: ServerProcess) -> None:
    story = "A secret that is kept, and told again. " * 20
    forget(plain)
    ask(plain, "b", story)
    order(plain, "unload", "b")
    wait_for(lambda: stored(plain) > 2)
    forget(plain)
    usage = ask(plain, "b", story).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def forget(server: ServerProcess) -> None:
    server.http.post(f"{server.url}/v1/cache/reset").raise_for_status()
    wait_for(lambda: stored(server) == 0)


def test_pins_of_models_that_left_are_listed_and_end(directory: Path, tmp_path: Path) -> None:
    story = "An agent's first words, which stay. " * 20
    body = {"model": "b", "messages": [{"role": "user", "content": story}]}
    with serving("org/a", tmp_path, *sets(directory)) as server:
        ask(server, "b", story)
        made = server.http.post(f"{server.url}/v1/cache/pin", json=body).json()
        order(server, "unload", "b")
        (left,) = server.http.get(f"{server.url}/v1/cache/pins").json()["data"]
        assert (left["id"], left["model"], left["hot_tokens"]) == (made["id"], "org/b", 0)
        assert left["tokens"] == left["cold_tokens"] == made["tokens"] > 0
    with serving("org/a", tmp_path, *sets(directory)) as server:  # and after a restart
        pins = f"{server.url}/v1/cache/pins"
        assert server.http.get(pins).json()["data"] == [left]
        assert server.http.get(pins, params={"cache_salt": "other"}).json()["data"] == []
        other = server.http.delete(f"{pins}/{left['id']}", params={"cache_salt": "other"})
        assert other.status_code == 404
        assert server.http.delete(f"{pins}/{left['id']}").json()["deleted"] is True
        assert server.http.get(pins).json()["data"] == []
        assert server.http.delete(f"{pins}/{left['id']}").status_code == 404
        wait_for(lambda: json.loads((tmp_path / "kv" / "pins.json").read_bytes()) == [])


def test_a_model_whose_files_are_gone_can_be_sent_away(
    server: ServerProcess, directory: Path
) -> None:
    save(directory / "org" / "gone", "llama")
    wait_for(lambda: ask(server, "gone").status_code == 200)
    shutil.rmtree(directory / "org" / "gone")
    wait_for(lambda: told(server)["org/gone"]["state"] == "loaded")
    time.sleep(2.1)
    assert told(server)["org/gone"]["state"] == "loaded"
    assert order(server, "unload", "gone").status_code == 200
    assert ask(server, "gone").status_code == 404


def test_only_by_hand(directory: Path, tmp_path: Path) -> None:
    with serving("org/a", tmp_path, *sets(directory, "models.autoload=false")) as server:
        order(server, "load", "broken")
        assert_envelope(ask(server, "broken"), 500)
        error = assert_envelope(ask(server, "b"), 404)
        assert "omlx-server load" in error["message"]
        order(server, "load", "b")
        assert ask(server, "b").status_code == 200
        asked = {"model": "b", "keep_alive": 0}  # nobody but the owner could bring it back
        assert server.http.post(f"{server.url}/api/generate", json=asked).status_code == 200
        running = server.http.get(f"{server.url}/api/ps").json()["models"]
        assert {one["name"] for one in running if one["expires_at"] > "2200"} >= {"org/b"}


def test_a_stream_goes_on_while_another_model_is_loaded(roomy: ServerProcess) -> None:
    order(roomy, "unload", "big")
    alone = text_of(ask(roomy, "a", "Sing", max_tokens=800, ignore_eos=True).json())
    for left in (2, 1, 0):
        got, times = list[str](), list[float]()
        listener = threading.Thread(target=listen, args=(roomy, got, times))
        listener.start()
        wait_for(lambda times=times: len(times) > 5)  # type: ignore[misc]
        begun = time.monotonic()
        assert order(roomy, "load", "big").status_code == 200
        ended = time.monotonic()
        listener.join(60)
        assert "".join(got) == alone
        wrong = paused(times, begun, ended)
        if not wrong:
            break
        assert left, wrong  # the machine itself may have paused
        order(roomy, "unload", "big")


def listen(server: ServerProcess, got: list[str], times: list[float]) -> None:
    """Take a stream, and note when its pieces came."""
    body = {**server.body("Sing", max_tokens=800), "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}{CHAT}", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                got.append(choice["delta"].get("content") or "")
                times.append(time.monotonic())


def paused(times: list[float], begun: float, ended: float) -> str:
    """What is wrong with the times of a stream beside a load from `begun` to `ended`."""
    during = [t for t in times if begun < t < ended]
    meanwhile = [b - a for a, b in pairwise(times) if begun < b and a < ended]
    if len(during) > 5 and max(meanwhile) < (ended - begun) / 2:
        return ""
    longest = max(meanwhile, default=0.0)
    return f"{len(during)} pieces in {ended - begun:.2f} s, one after {longest:.2f} s"


def test_memory_comes_back_to_the_machine(roomy: ServerProcess, heavy: Path) -> None:
    size = (heavy / "big" / "model.safetensors").stat().st_size
    order(roomy, "unload", "big")
    ask(roomy, "a")
    order(roomy, "load", "b")  # what is made once by whatever model comes second
    order(roomy, "unload", "b")
    before = roomy.memory
    ask(roomy, "big")
    held = roomy.memory - before
    assert held > 0.9 * size
    order(roomy, "unload", "big")
    wait_for(lambda: roomy.memory - before < 0.2 * held)  # of the process as the system sees it
    left = told(roomy)["org/a"]["weight_bytes"]
    wait_for(lambda: memory_of(roomy)["weights"] == left)


def test_the_names_change_while_the_server_runs(plain: ServerProcess) -> None:
    ask(plain, "a")
    order(plain, "unload", "b")
    assert ask(plain, "nick").status_code == 404
    plain.config.write_text('[models]\naliases = {nick = "org/b"}\nmax_loaded = 1\n')
    wait_for(lambda: ask(plain, "nick").status_code == 200)
    assert states(plain)["org/a"] == "absent"
    plain.config.write_text("")
    wait_for(lambda: ask(plain, "nick").status_code == 404)


def test_a_model_that_gets_pinned_while_the_server_runs_comes_by_itself(
    plain: ServerProcess,
) -> None:
    for name in "bc":
        order(plain, "unload", name)
    assert states(plain)["org/b"] == "absent"
    plain.config.write_text('[models]\npinned = ["b"]\n')
    wait_for(lambda: states(plain)["org/b"] == "loaded")
    assert told(plain)["org/b"]["pinned"] is True
    plain.config.write_text('[models]\npinned = ["nowhere", "c"]\n')
    wait_for(lambda: states(plain)["org/c"] == "loaded")
    wait_for(lambda: "nowhere is pinned, and is not there" in plain.log)
    assert told(plain)["org/b"]["pinned"] is False
    plain.config.write_text("")
