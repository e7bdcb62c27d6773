"""Conversations as bytes over HTTP: what one server knows, another one continues."""

from pathlib import Path

import httpx
import pytest

from tests.api.harness import UNPROBED, ServerProcess, cached, serving, text_of

STORY = "Far away there was a machine that had never read this story before. " * 8
TAR = {"Content-Type": "application/x-tar"}


def export(server: ServerProcess, content: str, **fields: object) -> httpx.Response:
    body = server.body(content, **fields)
    return server.http.post(f"{server.url}/v1/cache/export", json=body)


def import_(server: ServerProcess, data: bytes, query: str = "") -> httpx.Response:
    url = f"{server.url}/v1/cache/import{query}"
    return server.http.post(url, content=data, headers=TAR)


def forget(server: ServerProcess) -> None:
    server.http.post(f"{server.url}/v1/cache/reset", json={}).raise_for_status()


def problem(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


@pytest.fixture
def settings(tiny_models: Path) -> tuple[str, ...]:
    return (f"models.dirs={tiny_models}", UNPROBED)


def test_another_server_continues_where_the_first_one_was(
    settings: tuple[str, ...], tiny: ServerProcess, tmp_path: Path
) -> None:
    """The first has a cold tier, the second none: they still know each other's model."""
    told = tiny.chat(STORY, max_tokens=12)
    answer = export(tiny, STORY)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-tar"
    tokens = int(answer.headers["x-omlx-prompt-tokens"])
    assert int(answer.headers["x-omlx-cached-tokens"]) >= tokens - 1
    with serving("org/tiny", tmp_path, *settings, "cache.hot_cache_only=true") as other:
        taken = import_(other, answer.content)
        assert taken.status_code == 200, taken.text
        shape = taken.json()
        assert shape["model"] == "org/tiny"
        assert shape["added"] == shape["blocks"] > 5
        assert import_(other, answer.content).json()["added"] == 0
        again = other.chat(STORY, max_tokens=12)
        assert text_of(again) == text_of(told)
        assert cached(again) == tokens - 1
        back = export(other, STORY)
        assert int(back.headers["x-omlx-cached-tokens"]) >= tokens - 1
    assert not (tmp_path / "kv").exists()


def test_what_only_the_disk_has_is_exported_too(settings: tuple[str, ...], tmp_path: Path) -> None:
    with serving("org/tiny", tmp_path, *settings) as server:
        server.chat(STORY, max_tokens=4)
        first = export(server, STORY)
    with serving("org/tiny", tmp_path, *settings) as server:
        second = export(server, STORY)
        for name in ("x-omlx-prompt-tokens", "x-omlx-cached-tokens"):
            assert second.headers[name] == first.headers[name]


def test_a_salt_stays_apart_and_can_be_moved(tiny: ServerProcess) -> None:
    forget(tiny)
    tiny.chat(STORY, max_tokens=4, cache_salt="mine")
    assert export(tiny, STORY).status_code == 404
    archive = export(tiny, STORY, cache_salt="mine").content
    assert cached(tiny.chat(STORY, max_tokens=4, cache_salt="yours")) == 0
    assert import_(tiny, archive, "?cache_salt=theirs").json()["added"] > 5
    assert cached(tiny.chat(STORY, max_tokens=4)) == 0
    assert cached(tiny.chat(STORY, max_tokens=4, cache_salt="theirs")) > 300


def test_what_is_no_archive_is_refused_and_nothing_is_kept(tiny: ServerProcess) -> None:
    tiny.chat(STORY, max_tokens=4)
    archive = export(tiny, STORY).content
    forget(tiny)
    flipped = bytearray(archive)
    flipped[len(archive) * 3 // 4] ^= 1
    for bad in (b"", b"no tar", archive[:-600], bytes(flipped), archive + b"x"):
        answer = import_(tiny, bad)
        assert answer.status_code == 400, bad[:40]
        assert "no archive that can be used" in problem(answer)
    assert cached(tiny.chat(STORY, max_tokens=4)) == 0
    wrong = tiny.http.post(
        f"{tiny.url}/v1/cache/import", content=archive, headers={"Content-Type": "text/plain"}
    )
    assert wrong.status_code == 415
    assert import_(tiny, archive, "?model=nobody").status_code == 404
    assert import_(tiny, archive).status_code == 200


def test_an_archive_of_another_model_is_refused(
    settings: tuple[str, ...], tiny: ServerProcess, tmp_path: Path
) -> None:
    """Other blocks of the same weights are another format as well."""
    with serving("org/tiny", tmp_path, *settings, "cache.block_tokens=32") as server:
        server.chat(STORY, max_tokens=4)
        archive = export(server, STORY).content
    answer = import_(tiny, archive)
    assert answer.status_code == 400
    assert "another model" in problem(answer)


def test_an_export_of_nothing_says_what_to_do(tiny: ServerProcess) -> None:
    answer = export(tiny, "a prompt that nobody has ever asked " * 20, cache_salt="never")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_cached"
    assert "ask it once" in problem(answer)
