"""Pinned prefixes stay: against eviction in memory and on disk, and across a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.harness import UNPROBED, Json, ServerProcess, cached, serving, text_of

STORY = "This is the system prompt of an agent that is asked all day long. " * 8
SMALL = "cache.hot_cache_max_bytes=1MB"


def pin(server: ServerProcess, content: str, **fields: object) -> Json:
    body = server.body(content, **fields)
    answer = server.http.post(f"{server.url}/v1/cache/pin", json=body)
    assert answer.status_code == 200, answer.text
    shape: Json = answer.json()
    return shape


def pins(server: ServerProcess) -> list[Json]:
    answer = server.http.get(f"{server.url}/v1/cache/pins")
    found: list[Json] = answer.json()["data"]
    return found


def overfill(server: ServerProcess, rounds: int = 12) -> None:
    for number in range(rounds):
        server.chat(f"{number} is the number of something else. " * 25, max_tokens=2)


@pytest.fixture(scope="module")
def settings(tiny_models: Path) -> tuple[str, ...]:
    return (f"models.dirs={tiny_models}", UNPROBED)


@pytest.fixture(scope="module")
def small(
    settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with memory for two or three prompts, and no disk."""
    sets = (*settings, "cache.hot_cache_only=true", SMALL)
    with serving("org/tiny", tmp_path_factory.mktemp("small"), *sets) as server:
        yield server


def test_memory_alone_keeps_what_is_pinned(small: ServerProcess) -> None:
    small.chat(STORY, max_tokens=4)
    overfill(small)
    assert cached(small.chat(STORY, max_tokens=4)) < 200, "the memory is too large to tell"
    made = pin(small, STORY)
    assert made["object"] == "cache.pin"
    assert made["hot_tokens"] == made["tokens"] > 300
    assert made["cold_tokens"] == 0
    overfill(small)
    assert cached(small.chat(STORY, max_tokens=4)) >= made["tokens"]
    assert pins(small) == [made]
    assert pin(small, STORY)["id"] == made["id"]
    assert len(pins(small)) == 1
    answer = small.http.delete(f"{small.url}/v1/cache/pins/{made['id']}")
    assert answer.json() == {
        "id": made["id"],
        "object": "cache.pin",
        "deleted": True,
        "stored": False,
    }
    overfill(small)
    assert cached(small.chat(STORY, max_tokens=4)) < 200
    assert pins(small) == []


def test_a_pin_may_come_before_its_prompt(small: ServerProcess) -> None:
    small.http.post(f"{small.url}/v1/cache/reset", json={}).raise_for_status()
    made = pin(small, STORY)
    assert made["hot_tokens"] == 0
    told = small.chat(STORY, max_tokens=4)
    overfill(small)
    again = small.chat(STORY, max_tokens=4)
    assert cached(again) > 300
    assert text_of(again) == text_of(told)
    small.http.delete(f"{small.url}/v1/cache/pins/{made['id']}").raise_for_status()


def test_the_disk_keeps_what_is_pinned_and_a_restart_too(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    sets = (*settings, SMALL, "cache.cold_cache_max_bytes=2MB")
    with serving("org/tiny", tmp_path, *sets) as server:
        told = server.chat(STORY, max_tokens=4)
        made = pin(server, STORY)
    assert b"agent" not in (tmp_path / "kv" / "pins.json").read_bytes()
    with serving("org/tiny", tmp_path, *sets) as server:
        (kept,) = pins(server)
        assert {**kept, "hot_tokens": 0} == {**made, "hot_tokens": 0, "cold_tokens": made["tokens"]}
        overfill(server, 15)
        again = server.chat(STORY, max_tokens=4)
        assert cached(again) >= made["tokens"]
        assert text_of(again) == text_of(told)
        overfill(server, 15)
        assert pins(server)[0]["hot_tokens"] == made["tokens"]
        server.http.delete(f"{server.url}/v1/cache/pins/{made['id']}")
        overfill(server, 15)
        assert cached(server.chat(STORY, max_tokens=4)) < 200


def test_each_key_has_its_own_pins(settings: tuple[str, ...], tmp_path: Path) -> None:
    sets = (*settings, "cache.hot_cache_only=true", 'auth.api_keys=["one","two"]')
    with serving("org/tiny", tmp_path, *sets) as server:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        url = f"{server.url}/v1/cache/pin"
        made = server.http.post(url, json=server.body(STORY), headers=one).json()
        assert server.http.get(f"{url}s", headers=two).json()["data"] == []
        assert server.http.delete(f"{url}s/{made['id']}", headers=two).status_code == 404
        assert len(server.http.get(f"{url}s", headers=one).json()["data"]) == 1


def test_what_can_not_be_pinned_or_unpinned(tiny: ServerProcess) -> None:
    answer = tiny.http.post(f"{tiny.url}/v1/cache/pin", json=tiny.body("hi"))
    assert answer.status_code == 400
    assert "shorter than one block" in answer.json()["error"]["message"]
    answer = tiny.http.delete(f"{tiny.url}/v1/cache/pins/pin-0")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "pin_not_found"
