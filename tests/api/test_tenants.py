"""Clients must not learn of each other's prompts: by key and by salt, in memory and on disk."""

from functools import partial
from pathlib import Path

from tests.api.harness import Json, ServerProcess, serving, wait_for

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


def test_nobody_gets_what_another_has_asked(tiny_models: Path, tmp_path: Path) -> None:
    """Each client is the first for its own prefix, and finds it the second time; after a restart on
    the disk. Neither keys nor salts can be read there."""
    sets = [f"models.dirs={tiny_models}", f"auth.api_keys={ONE},{TWO}"]
    sets.append("cache.cold_write_through=true")
    with serving("tiny", tmp_path, *sets) as server:
        for client in CLIENTS:
            assert known(server, *client) == 0
            assert cached(server, *client) == 0
        for client in CLIENTS:
            assert known(server, *client) > 0
            assert cached(server, *client) > 0
    files = [path for path in (tmp_path / "kv").rglob("*") if path.is_file()]
    assert len(files) > len(CLIENTS)
    for path in files:
        content = path.read_bytes() + path.name.encode()
        assert not [word for word in (ONE, TWO, SALT) if word.encode() in content]
    with serving("tiny", tmp_path, *sets) as server:
        for stranger in ((ONE, "new"), (TWO, "new")):
            assert known(server, *stranger) == 0
            assert cached(server, *stranger) == 0
        for client in CLIENTS:
            # Where reading has taken longer than computing, it pays again after some looks.
            wait_for(partial(known, server, *client))
            assert cached(server, *client) > 0
