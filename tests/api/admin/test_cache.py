"""The map of a prefix cache and the comparison of a prompt with it, over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx_server.api.admin.cache import first_shown_token
from tests.api.admin.asking import OWNER, told
from tests.api.harness import Json, ServerProcess, cached, serving

TALE = "Once there was a ferryman who kept a lamp in the window for whoever came late. " * 6


@pytest.fixture(scope="module")
def server(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sets = [f"models.dirs={tiny_models}", "cache.block_tokens=16"]
    with serving("org/tiny", tmp_path_factory.mktemp("map"), *sets) as server:
        yield server


@pytest.fixture(autouse=True)
def empty(server: ServerProcess) -> None:
    server.http.post(f"{server.url}/v1/cache/reset", json={})


def compare(server: ServerProcess, content: str, **fields: object) -> Json:
    body = {**server.body(content), **fields}
    return told(server, "cache/compare", method="POST", json=body)


def test_the_map_has_every_block_of_a_conversation(server: ServerProcess) -> None:
    tokens = server.chat(TALE, max_tokens=8, ignore_eos=True)["usage"]["prompt_tokens"]
    found = told(server, "cache?model=org/tiny")
    assert (found["model"], found["block_tokens"], found["left_out"]) == ("org/tiny", 16, 0)
    blocks = sorted(found["blocks"], key=lambda block: block["start"])
    assert [block["start"] for block in blocks] == list(range(0, blocks[-1]["start"] + 1, 16))
    assert tokens <= blocks[-1]["stop"] <= tokens + 8
    assert [block["parent"] for block in blocks] == [None, *(b["id"] for b in blocks[:-1])]
    for block in blocks:
        assert block["tier"] == "hot" and block["bytes"] > 0
        assert not (block["pinned"] or block["in_use"] or block["checkpoint"])
        assert 0 <= block["idle_seconds"] < 600
    assert found["counters"]["blocks"] == len(blocks)


def test_pinned_blocks_are_told(server: ServerProcess) -> None:
    server.chat(TALE, max_tokens=1)
    pin = server.http.post(f"{server.url}/v1/cache/pin", json=server.body(TALE)).json()
    found = told(server, "cache")["blocks"]
    assert sum(b["stop"] - b["start"] for b in found if b["pinned"]) == pin["tokens"]
    server.http.delete(f"{server.url}/v1/cache/pins/{pin['id']}")
    assert not any(block["pinned"] for block in told(server, "cache")["blocks"])


def test_hits_and_misses_are_counted_by_reason(server: ServerProcess) -> None:
    before = told(server, "cache")["counters"]
    server.chat(TALE, max_tokens=1)
    again = server.chat(TALE, max_tokens=1)
    server.chat(TALE[:300] + "Something else came up.", max_tokens=1)
    after = told(server, "cache")["counters"]
    assert after["hits"] - before["hits"] == 1
    gained = {why: n - before["misses"][why] for why, n in after["misses"].items()}
    assert gained["new_prefix"] + gained["evicted"] == 1 and gained["diverged"] == 1
    assert after["found_tokens"] - before["found_tokens"] > cached(again)


def test_a_prompt_leaves_what_is_cached_at_the_right_token(server: ServerProcess) -> None:
    server.chat(TALE, max_tokens=1)
    at = TALE.index(" lamp", 200)  # a space begins a token
    other = TALE[:at] + " XYZ" + TALE[at + 4 :]
    found = compare(server, other)
    pieces, diverges = found["pieces"], found["diverges_at"]
    assert "".join(pieces[:diverges]).endswith(TALE[:at])
    assert "".join(pieces[diverges:]).startswith(" XYZ")
    assert "".join(found["stored"]).startswith(" lamp in the window")
    assert len(found["stored"]) == 64
    assert found["cached_tokens"] == found["diverges_at"]
    assert len(found["pieces"]) == found["prompt_tokens"] and found["pieces_start"] == 0
    assert server.chat(other, max_tokens=1)["usage"]["prompt_tokens"] == found["prompt_tokens"]
    spans = found["blocks"]
    assert spans[0]["start"] == 0 and spans[-1]["stop"] == found["prompt_tokens"]
    assert {span["tier"] for span in spans if span["stop"] <= found["diverges_at"]} == {"hot"}
    assert {span["tier"] for span in spans if span["start"] >= found["diverges_at"]} == {None}


def test_what_it_tells_is_what_a_request_then_gets(server: ServerProcess) -> None:
    server.chat(TALE, max_tokens=1)
    for other in (TALE, TALE[:250] + " But no.", "Nothing of it", TALE + " And then?"):
        found = compare(server, other)
        assert cached(server.chat(other, max_tokens=1)) == found["cached_tokens"]


def test_a_prompt_that_is_all_there_diverges_nowhere(server: ServerProcess) -> None:
    server.chat(TALE, max_tokens=1)
    found = compare(server, TALE)
    assert found["diverges_at"] is None and found["stored"] == []
    assert found["cached_tokens"] == found["prompt_tokens"] - 1


def test_another_salt_has_nothing(server: ServerProcess) -> None:
    server.chat(TALE, max_tokens=1)
    found = compare(server, TALE, cache_salt="mine")
    assert (found["diverges_at"], found["cached_tokens"], found["stored"]) == (0, 0, [])


def test_of_a_long_prompt_the_pieces_around_the_divergence_are_told() -> None:
    assert first_shown_token(100, 3) == 0
    assert first_shown_token(100_000, None) == 0
    assert first_shown_token(100_000, 50_000) == 40_000
    assert first_shown_token(100_000, 99_999) == 80_000


def test_a_model_that_is_not_there_has_no_map(server: ServerProcess) -> None:
    assert told(server, "cache?model=nobody", 404)["error"]["code"] == "model_not_found"
    error = told(server, "cache?model=org/thinker", 409)["error"]
    assert error["param"] == "model" and "not loaded" in error["message"]
    assert told(server, "cache")["model"] == "org/tiny"


def test_a_wrong_body_is_refused_as_a_chat_would(server: ServerProcess) -> None:
    assert told(server, "cache/compare", 400, method="POST", json={"messages": 5})
    url = f"{server.url}/admin/cache"
    assert server.http.get(url).status_code == 401
    assert server.http.post(f"{url}/compare", json=server.body("a")).status_code == 401
    assert server.http.get(url, headers=OWNER).status_code == 200


def test_cold_blocks_are_told_and_compared(tiny_models: Path, tmp_path: Path) -> None:
    sets = [f"models.dirs={tiny_models}", "cache.block_tokens=16", "cache.cold_write_through=true"]
    sets += ["cache.hot_cache_max_bytes=200KB"]
    with serving("org/tiny", tmp_path, *sets) as server:
        server.chat(TALE, max_tokens=1)
        for number in range(6):
            server.chat(f"{number} " + TALE[::-1], max_tokens=1)
        blocks = told(server, "cache")["blocks"]
        assert {"hot", "cold"} == {block["tier"] for block in blocks}
        assert all(b["idle_seconds"] is None for b in blocks if b["tier"] == "cold")
        at = TALE.index(" lamp", 400)
        found = compare(server, TALE[:at] + " XYZ")
        assert "cold" in {span["tier"] for span in found["blocks"]}
        assert "".join(found["pieces"][: found["diverges_at"]]).endswith(TALE[:at])
