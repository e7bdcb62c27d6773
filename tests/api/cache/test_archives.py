"""Conversations as bytes over HTTP: what one server knows, another one continues."""

from pathlib import Path

import httpx
import pytest

from tests.api.harness import Json, ServerProcess, serving, text_of

STORY = "Far away there was a machine that had never read this story before. " * 8
TAR = {"Content-Type": "application/x-tar"}


def cached(answer: Json) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def export(server: ServerProcess, content: str, **fields: object) -> httpx.Response:
    body = server.body(content, **fields)
    return server.http.post(f"{server.url}/v1/cache/export", json=body)


def import_(server: ServerProcess, data: bytes, query: str = "") -> httpx.Response:
    url = f"{server.url}/v1/cache/import{query}"
    return server.http.post(url, content=data, headers=TAR)


def problem(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


@pytest.fixture
def settings(tiny_models: Path) -> tuple[str, ...]:
    return (f"models.dirs={tiny_models}",)


def test_another_server_continues_where_the_first_one_was(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    """The first has a cold tier, the second none: they still know each other's model."""
    (tmp_path / "a").mkdir()
    with serving("org/tiny", tmp_path / "a", *settings) as server:
        told = server.chat(STORY, max_tokens=12)
        answer = export(server, STORY)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/x-tar"
        tokens = int(answer.headers["x-omlx-prompt-tokens"])
        assert int(answer.headers["x-omlx-cached-tokens"]) >= tokens - 1
    (tmp_path / "b").mkdir()
    with serving("org/tiny", tmp_path / "b", *settings, "cache.hot_cache_only=true") as other:
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
    assert not (tmp_path / "b" / "kv").exists()


def test_what_only_the_disk_has_is_exported_too(settings: tuple[str, ...], tmp_path: Path) -> None:
    with serving("org/tiny", tmp_path, *settings) as server:
        server.chat(STORY, max_tokens=4)
        first = export(server, STORY)
    with serving("org/tiny", tmp_path, *settings) as server:
        second = export(server, STORY)
        for name in ("x-omlx-prompt-tokens", "x-omlx-cached-tokens"):
            assert second.headers[name] == first.headers[name]


def test_a_salt_stays_apart_and_can_be_moved(settings: tuple[str, ...], tmp_path: Path) -> None:
    with serving("org/tiny", tmp_path, *settings) as server:
        server.chat(STORY, max_tokens=4, cache_salt="mine")
        assert export(server, STORY).status_code == 404
        archive = export(server, STORY, cache_salt="mine").content
        assert cached(server.chat(STORY, max_tokens=4, cache_salt="yours")) == 0
        assert import_(server, archive, "?cache_salt=theirs").json()["added"] > 5
        assert cached(server.chat(STORY, max_tokens=4)) == 0
        assert cached(server.chat(STORY, max_tokens=4, cache_salt="theirs")) > 300


def test_what_is_no_archive_is_refused_and_nothing_is_kept(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    with serving("org/tiny", tmp_path, *settings) as server:
        server.chat(STORY, max_tokens=4)
        archive = export(server, STORY).content
        server.http.post(f"{server.url}/v1/cache/reset", json={})
        flipped = bytearray(archive)
        flipped[len(archive) * 3 // 4] ^= 1
        for bad in (b"", b"no tar", archive[:-600], bytes(flipped), archive + b"x"):
            answer = import_(server, bad)
            assert answer.status_code == 400, bad[:40]
            assert "no archive that can be used" in problem(answer)
        assert cached(server.chat(STORY, max_tokens=4)) == 0
        wrong = server.http.post(
            f"{server.url}/v1/cache/import", content=archive, headers={"Content-Type": "text/plain"}
        )
        assert wrong.status_code == 415
        assert import_(server, archive, "?model=nobody").status_code == 404
        assert import_(server, archive).status_code == 200


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
