"""What the model in a directory is for."""

import json
from pathlib import Path

from omlx_server.core.model_kind import Kind
from omlx_server.models.kind import kind_in


def test_files_and_the_name_of_the_directory_tell(tmp_path: Path) -> None:
    path = tmp_path / "Qwen3-Embedding-0.6B"
    path.mkdir()
    assert kind_in(path) is Kind.UNKNOWN
    (path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    assert kind_in(path) is Kind.EMBEDDING
    assert kind_in(path, "abc") is Kind.CHAT
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (path / "modules.json").write_text(json.dumps(modules))
    assert kind_in(path, "abc") is Kind.EMBEDDING


def test_files_that_can_not_be_read_raise_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert kind_in(tmp_path) is Kind.UNKNOWN
    (tmp_path / "config.json").write_bytes(b'{"architectures": ["BertModel"]}')
    (tmp_path / "modules.json").write_bytes(b"\xff[1]")
    assert kind_in(tmp_path) is Kind.EMBEDDING
