"""Quantised KV caches from the outside: the same answers warm and cold, through a restart too."""

import json
from pathlib import Path

import pytest

from tests.api.harness import UNPROBED, ServerProcess, cached, serving, text_of
from tests.api.stories import program

STORY = "A cache that was kept in few bits is read back in the same few bits. " * 8


def scheme(name: str, bits: float) -> tuple[str, str]:
    return f"kv_cache.scheme={name}", f"kv_cache.bits={bits:g}"


@pytest.fixture
def settings(tiny_models: Path) -> tuple[str, ...]:
    return (f"models.dirs={tiny_models}", UNPROBED)


def test_warm_equals_cold_in_memory_and_after_a_restart(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    """The scheme is that of the model's own settings."""
    own = '{"org/tiny": {"kv_cache": {"scheme": "turboquant", "bits": 3.5}}}'
    sets = (*settings, f"models.overrides={own}")
    with serving("org/tiny", tmp_path, *sets) as server:
        assert "held as turboquant-k3v4" in server.log
        cold = server.chat(STORY, max_tokens=12)
        warm = server.chat(STORY, max_tokens=12)
        assert cached(cold) == 0
        assert cached(warm) == cold["usage"]["prompt_tokens"] - 1
        assert text_of(warm) == text_of(cold)
    with serving("org/tiny", tmp_path, *sets) as server:
        again = server.chat(STORY, max_tokens=12)
        assert cached(again) == cached(warm)
        assert text_of(again) == text_of(cold)


def test_blocks_of_one_scheme_never_meet_another(settings: tuple[str, ...], tmp_path: Path) -> None:
    sizes = {}
    for name, bits in (("none", 4), ("turboquant", 4), ("turboquant", 2)):
        with serving("org/tiny", tmp_path, *settings, *scheme(name, bits)) as server:
            assert cached(server.chat(STORY, max_tokens=4)) == 0
        spaces = json.loads(program("stats", "--json", directory=tmp_path).stdout)["namespaces"]
        sizes[name, bits] = sum(space["bytes"] for space in spaces)
    assert len(spaces) == 3
    plain = sizes["none", 4]
    four = sizes["turboquant", 4] - plain
    two = sizes["turboquant", 2] - sizes["turboquant", 4]
    assert two < four < plain


def test_a_model_that_can_not_have_it_is_refused_at_the_start(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    """Its heads have 16 numbers, and MLX's groups 32 at least."""
    server = ServerProcess("org/tiny", tmp_path, [*settings, *scheme("affine", 4)])
    assert server.wait(60) == 1
    assert "the server could not start: " in server.log
    assert "group size of 64 does not divide its head dim of 16" in server.log
    server = ServerProcess("org/tiny", tmp_path, [*settings, *scheme("affine", 3.5)])
    assert server.wait(60) == 2
    assert "kv_cache.scheme affine can't have 3.5 bits" in server.log
