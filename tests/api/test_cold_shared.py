"""Three models in turn, on one directory with room for a third of what they say."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.api.conftest import CHATML
from tests.api.harness import UNPROBED, ServerProcess, cached, serving, text_of
from tests.api.stories import metrics
from tests.text import makers
from tests.tiny_models import save_tiny

KINDS = {"org/one": "llama", "org/two": "qwen3", "org/three": "gemma3_text"}
BUDGET = 1_000_000
OVERFILL = 3
HIT = 'omlx_cache_hit_tokens_total{tier="cold"}'


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("three")
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    for name, kind in KINDS.items():
        save_tiny(makers.save(directory / name, "byte_level", CHATML), kind, vocab_size=vocab)
    return directory


class Shared:
    """The directory, and servers on it one after the other."""

    def __init__(self, models: Path, directory: Path) -> None:
        self._models = models
        self._directory = directory
        self.written = 0

    @contextmanager
    def serving(self, model: str) -> Iterator[ServerProcess]:
        settings = (
            f"models.dirs={self._models}",
            UNPROBED,
            f"cache.cold_cache_max_bytes={BUDGET}B",
            "cache.cold_write_through=true",
        )
        with serving(model, self._directory, *settings) as server:
            self.look()
            yield server
            self.written += int(metrics(server)["omlx_cache_written_bytes_total"])
        self.look()

    def look(self) -> None:
        """Not while a file comes or goes: two lists in a row must be the same."""
        files = self._list()
        while files != (files := self._list()):
            pass
        assert sum(files.values()) <= BUDGET + max(files.values(), default=0)

    def _list(self) -> dict[str, int]:
        found = {}
        for directory, _, names in os.walk(self._directory / "kv"):
            for name in names:
                path = Path(directory, name)
                try:
                    found[str(path)] = path.stat().st_size
                except FileNotFoundError:
                    continue
        return found


def story(of: str) -> str:
    return f"{of}: " + "There was a disk that never forgot a block it was given. " * 6


def overfill(shared: Shared, server: ServerProcess, nbytes: float) -> None:
    """Ask new things until so much is written by all servers together."""
    number = 0
    while shared.written + metrics(server)["omlx_cache_written_bytes_total"] < nbytes:
        number += 1
        assert number < 500, "hardly anything is written"
        server.chat(story(f"{server.model} {number}"), max_tokens=1)
        shared.look()


def test_three_models_share_a_budget_and_each_finds_its_own(models: Path, tmp_path: Path) -> None:
    shared = Shared(models, tmp_path)
    first, second, third = KINDS
    said = {}
    with shared.serving(first) as server:
        overfill(shared, server, OVERFILL * BUDGET / 2)
    with shared.serving(second) as server:
        overfill(shared, server, OVERFILL * BUDGET)
        said[second] = text_of(server.chat(story(second), max_tokens=8))
    for model in (third, first):
        with shared.serving(model) as server:
            said[model] = text_of(server.chat(story(model), max_tokens=8))
    for model in (second, third, first):
        with shared.serving(model) as server:
            again = server.chat(story(model), max_tokens=8)
            assert text_of(again) == said[model]
            assert cached(again) >= 256 and metrics(server)[HIT] == cached(again)
