"""Clients must not learn of each other's prompts: by key and by salt, in memory and on disk."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.api.harness import (
    ADMIN_TOKEN,
    UNPROBED,
    Json,
    ServerProcess,
    assert_envelope,
    serving,
    wait_for,
)

STORY = "A secret that one client has told, and that no other may find out by its clock. " * 8
ONE, TWO, SALT = "the-key-of-one", "the-key-of-two", "the-salt-of-both"
CLIENTS = ((ONE, None), (TWO, None), (ONE, SALT), (TWO, SALT))


def cached(server: ServerProcess, key: str, salt: str | None) -> int:
    """Tokens that an answer did not have to compute."""
    body = server.body(STORY, max_tokens=2, cache_salt=salt)
    answer: Json = server.post(body, authorization=f"Bearer {key}").json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def known(server: ServerProcess, key: str, salt: str | None) -> int:
    headers = {"authorization": f"Bearer {key}"}
    body = server.body(STORY, cache_salt=salt)
    found: Json = server.http.post(
        f"{server.url}/v1/cache/probe", json=body, headers=headers
    ).json()
    return int(found["cached_tokens"])


@pytest.fixture(scope="module")
def sets(tiny_models: Path) -> list[str]:
    keys = f"auth.api_keys={ONE},{TWO}"
    more = ("cache.cold_write_through=true", UNPROBED)
    return [f"models.dirs={tiny_models}", keys, *more]


@pytest.fixture(scope="module")
def kept(sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a server that each client has asked: it was the first for its prefix, and
    found it the second time."""
    directory = tmp_path_factory.mktemp("kept")
    with serving("tiny", directory, *sets) as server:
        for client in CLIENTS:
            assert known(server, *client) == 0
            assert cached(server, *client) == 0
        for client in CLIENTS:
            assert known(server, *client) > 0
            assert cached(server, *client) > 0
    return directory


@pytest.fixture
def place(kept: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(kept / "kv", tmp_path / "kv")
    return tmp_path


def test_nobody_gets_what_another_has_asked(sets: list[str], place: Path) -> None:
    """Also on the disk, after a restart. Neither keys nor salts can be read there."""
    files = [path for path in (place / "kv").rglob("*") if path.is_file()]
    assert len(files) > len(CLIENTS)
    for path in files:
        content = path.read_bytes() + path.name.encode()
        assert not [word for word in (ONE, TWO, SALT) if word.encode() in content]
    with serving("tiny", place, *sets) as server:
        for stranger in ((ONE, "new"), (TWO, "new")):
            assert known(server, *stranger) == 0
            assert cached(server, *stranger) == 0
        for client in CLIENTS:
            # Where reading has taken longer than computing, it pays again after some looks.
            wait_for(partial(known, server, *client))
            assert cached(server, *client) > 0


# --- What one client may do to another -----------------------------------------------------------


@pytest.fixture(scope="module")
def shop(sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving("tiny", tmp_path_factory.mktemp("shop"), *sets) as server:
        yield server


@pytest.fixture
def afresh(shop: ServerProcess) -> ServerProcess:
    """Nothing is cached, of nobody."""
    assert reset(shop, ONE, ADMIN_TOKEN).status_code == 200
    return shop


def reset(
    server: ServerProcess, key: str, token: str = "", salt: str = "", path: str = "/v1/cache/reset"
) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", **({"x-admin-token": token} if token else {})}
    params = {"cache_salt": salt} if salt else {}
    return server.http.post(f"{server.url}{path}", headers=headers, params=params)


def pin(server: ServerProcess, key: str) -> None:
    headers = {"authorization": f"Bearer {key}"}
    made = server.http.post(f"{server.url}/v1/cache/pin", json=server.body(STORY), headers=headers)
    assert made.status_code == 200, made.text


def pinned(server: ServerProcess, key: str) -> list[tuple[int, int]]:
    """Tokens in each tier of each pin."""
    headers = {"authorization": f"Bearer {key}"}
    found = server.http.get(f"{server.url}/v1/cache/pins", headers=headers).json()["data"]
    return [(one["hot_tokens"], one["cold_tokens"]) for one in found]


@pytest.mark.parametrize("path", ["/v1/cache/reset", "/reset_prefix_cache"])
def test_a_key_drops_its_own_blocks_and_no_others(afresh: ServerProcess, path: str) -> None:
    for client in CLIENTS:
        assert cached(afresh, *client) == 0
    pin(afresh, TWO)
    kept = wait_for(lambda: next((p for p in pinned(afresh, TWO) if p[0] == p[1] > 0), None))
    dropped = reset(afresh, ONE, path=path).json()["dropped"][0]
    assert dropped["blocks"] > 0
    assert [known(afresh, *client) > 0 for client in CLIENTS] == [False, True, True, True]
    assert pinned(afresh, TWO) == [kept]
    assert reset(afresh, ONE, path=path).json()["dropped"][0]["blocks"] == 0
    assert reset(afresh, ONE, salt=SALT, path=path).status_code == 200
    assert [known(afresh, *client) > 0 for client in CLIENTS] == [False, True, False, True]
    assert cached(afresh, ONE, None) == 0 and cached(afresh, ONE, None) > 0


def test_a_key_keeps_its_pins_over_its_own_reset(afresh: ServerProcess) -> None:
    pin(afresh, ONE)
    cached(afresh, ONE, None)
    wait_for(lambda: next((p for p in pinned(afresh, ONE) if p[0] == p[1] > 0), None))
    assert reset(afresh, ONE).status_code == 200
    assert pinned(afresh, ONE) == [(0, 0)]
    cached(afresh, ONE, None)
    assert [hot > 0 for hot, _ in pinned(afresh, ONE)] == [True]
    headers = {"authorization": f"Bearer {ONE}"}
    for one in afresh.http.get(f"{afresh.url}/v1/cache/pins", headers=headers).json()["data"]:
        afresh.http.delete(f"{afresh.url}/v1/cache/pins/{one['id']}", headers=headers)


def test_the_owner_drops_all(afresh: ServerProcess) -> None:
    for client in CLIENTS:
        cached(afresh, *client)
    assert reset(afresh, TWO, ADMIN_TOKEN).json()["dropped"][0]["blocks"] > 0
    assert [known(afresh, *client) for client in CLIENTS] == [0, 0, 0, 0]
    assert_envelope(reset(afresh, "nobody"), 401)


def test_a_reset_finds_what_an_earlier_process_has_stored(sets: list[str], place: Path) -> None:
    files = set((place / "kv").rglob("*.safetensors"))
    with serving("tiny", place, *sets) as server:
        assert reset(server, ONE).json()["dropped"][0]["blocks"] == 0  # nothing in memory
        assert known(server, ONE, None) == 0
        wait_for(partial(known, server, TWO, None))
    left = set((place / "kv").rglob("*.safetensors"))
    assert len(left & files) == len(files) * 3 // 4


def test_keys_that_share_their_blocks_cannot_drop_them(sets: list[str], tmp_path: Path) -> None:
    with serving("tiny", tmp_path, *sets, "cache.salt=shared") as server:
        assert cached(server, ONE, None) == 0 and cached(server, TWO, None) > 0
        for salt in ("", SALT):
            error = assert_envelope(reset(server, ONE, salt=salt), 403)
            assert error["code"] == "cache_shared" and "x-admin-token" in error["message"]
        assert known(server, TWO, None) > 0
        assert reset(server, ONE, ADMIN_TOKEN).status_code == 200
        assert known(server, TWO, None) == 0


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
def test_who_has_no_key_is_told_whether_it_lives_and_no_more(
    shop: ServerProcess, path: str
) -> None:
    def told(**headers: str) -> Json:
        answer = shop.http.get(f"{shop.url}{path}", headers=headers)
        assert answer.status_code == 200
        found: Json = answer.json()
        return found

    assert told() == told(authorization="Bearer wrong") == {"status": "ok"}
    whole = {"status", "engines", "loaded", "memory", "config", "device_errors"}
    assert set(told(authorization=f"Bearer {TWO}")) == whole
    assert set(told(**{"x-admin-token": ADMIN_TOKEN})) == whole


def test_nobody_is_told_that_another_key_has_asked_the_same(afresh: ServerProcess) -> None:
    def why(key: str, salt: str | None) -> str:
        body = afresh.body(STORY, max_tokens=2, cache_salt=salt)
        answer = afresh.post(body, authorization=f"Bearer {key}")
        return answer.headers["x-omlx-cache-miss"].partition(";")[0]

    assert why(ONE, None) == "new_prefix"
    assert why(TWO, None) == "new_prefix"
    assert why(TWO, "another") == "namespace"  # its own prompt, under another salt of its own
