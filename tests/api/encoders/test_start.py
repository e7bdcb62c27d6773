"""A server whose reading models can't be had says so and ends; it does not wait for ever."""

import shutil
from pathlib import Path

from omlx_server.models.locate import Located
from tests.api.harness import ServerProcess


def end_of(model: Located, directory: Path, *settings: str) -> tuple[int, str]:
    """The exit code and what was said."""
    server = ServerProcess(str(model.path), directory, settings)
    try:
        return server.wait(60), server.log
    finally:
        server.kill()


def test_a_language_model_without_the_words_can_not_judge(
    tiny_chat: Located, tmp_path: Path
) -> None:
    code, said = end_of(tiny_chat, tmp_path, f"models.reranker={tiny_chat.path}")
    assert code == 2
    assert "can't rank documents: its vocabulary has no 'yes'" in said


def test_damaged_weights(tiny_chat: Located, minilm: Located, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(minilm.path, damaged, ignore=shutil.ignore_patterns("*.safetensors"))
    (damaged / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    code, said = end_of(tiny_chat, tmp_path / "server", f"models.embedding={damaged}")
    assert code == 1
    assert "has no" in said and str(damaged) in said
