"""The files of a model on a hub, before anything large is downloaded."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.core.model_files.kind import ModelKind, architecture_of
from omlx_server.core.model_files.weights import foreign_method
from omlx_server.errors import ModelUnavailable
from omlx_server.models import layout
from omlx_server.models.json_file import read_json
from omlx_server.models.kind import kind_in


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Large files have a `sha256`; `blob` is git's SHA-1 of the others."""

    path: str
    nbytes: int
    sha256: str
    blob: str = ""

    def is_same(self, file: Path) -> bool:
        try:
            content = file.read_bytes() if file.stat().st_size == self.nbytes else None
        except OSError:
            return False
        if content is None:
            return False
        head = f"blob {len(content)}\0".encode()
        return hashlib.sha1(head + content, usedforsecurity=False).hexdigest() == self.blob


@dataclass(frozen=True, slots=True)
class Remote:
    """One commit of a repository; `files` would be downloaded, `others` are the rest. With a `tag`
    they are the parts of a GGUF model, the first one first."""

    repo_id: str
    commit: str
    files: tuple[RemoteFile, ...]
    others: tuple[str, ...]
    tag: str = ""

    @property
    def large(self) -> tuple[RemoteFile, ...]:
        return tuple(file for file in self.files if file.sha256)

    @property
    def small(self) -> tuple[RemoteFile, ...]:
        return tuple(file for file in self.files if not file.sha256)

    def check_files(self) -> None:
        """Raise ModelUnavailable unless the file names are a model's."""
        if self.tag:
            return
        names = [file.path for file in self.files]
        missing = "config.json" if "config.json" not in names else ""
        if not missing and layout.INDEX not in names:
            missing = layout.missing_shards(n for n in names if is_mlx_weights(n))
        if missing:
            raise self.unfit(f"has no {missing}{layout.holding([*names, *self.others])}")

    def check_contents(self, directory: Path) -> None:
        """Raise ModelUnavailable unless the small files in `directory` are a servable model's."""
        names = {file.path for file in self.files}
        config = read_json(directory / "config.json")
        if not isinstance(config, dict):
            raise self.unfit("has a config.json that is no JSON object")
        for path in self._indexed(directory):
            if path not in names:
                raise self.unfit(f"has no {path}, which its index names")
        if problem := unfit_for_serving(config, kind_in(directory, self.repo_id)):
            raise self.unfit(problem)

    def _indexed(self, directory: Path) -> list[str]:
        if not any(file.path == layout.INDEX for file in self.files):
            return []
        return [file.name for file in layout.weight_files(directory)]

    def unfit(self, reason: str, hint: str = "") -> ModelUnavailable:
        name = self.repo_id.rpartition("/")[2].removesuffix("-GGUF").removesuffix("-gguf")
        other = f"Look for mlx-community/{name}-4bit or the like on Hugging Face."
        return ModelUnavailable(
            f"{self.repo_id} {reason}", hint=f"Nothing was downloaded. {hint or other}"
        )


def unfit_for_serving(config: Mapping[str, Any], kind: ModelKind) -> str:
    """Return why a model can't be served, to follow its name; else ""."""
    if method := foreign_method(config):
        return f"is quantised by {method}, which MLX can't read"
    if kind is ModelKind.UNKNOWN:
        what = architecture_of(config) or config.get("model_type") or "something without a name"
        return f"is {what}: no model to chat, to embed or to rank"
    return ""


def is_mlx_weights(name: str) -> bool:
    return name.startswith("model") and name.endswith(".safetensors") and "/" not in name
