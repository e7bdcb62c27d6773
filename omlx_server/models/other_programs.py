"""Finds the models that other programs keep on this machine. Only reads there; any thread."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OLLAMA, LM_STUDIO, LLAMA_CPP = "ollama", "lm-studio", "llama.cpp"
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_MANIFEST_BYTES = 1 << 20
_LIBRARY = ("registry.ollama.ai", "library")


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A GGUF file or a directory, and its names, the one to show first."""

    path: Path
    names: tuple[str, ...]


def directories_of(programs: Sequence[str]) -> list[Path]:
    """Return the directories of models, laid out as those of `models.dirs`."""
    shared = (program for program in programs if program != OLLAMA)
    return [place for program in shared for place in _places_of(program) if place.is_dir()]


def program_of(path: Path) -> str:
    """Return the program that keeps a file or directory, or ""."""
    programs = (OLLAMA, LM_STUDIO, LLAMA_CPP)
    return next((p for p in programs if any(map(path.is_relative_to, _places_of(p)))), "")


def _places_of(program: str) -> list[Path]:
    home = Path.home()
    if program == OLLAMA:
        return [Path(os.environ.get("OLLAMA_MODELS") or home / ".ollama" / "models")]
    if program == LM_STUDIO:
        return [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    if cache := os.environ.get("LLAMA_CACHE"):
        return [Path(cache)]
    return [home / ".cache" / "llama.cpp", home / "Library" / "Caches" / "llama.cpp"]


def ollama_files(programs: Sequence[str]) -> Iterator[NamedPath]:
    """Yield the models of Ollama's store: manifests/HOST/NAMESPACE/MODEL/TAG name a blob."""
    for store in _places_of(OLLAMA) if OLLAMA in programs else ():
        for manifest in _manifests(store):
            blob = _blob_of(manifest)
            if blob and (store / "blobs" / blob).is_file():
                yield NamedPath(store / "blobs" / blob, _names_of(manifest.parts[-4:]))


def _manifests(store: Path) -> list[Path]:
    try:
        return sorted((store / "manifests").glob("*/*/*/*"))
    except OSError:  # it changes while it is listed
        return []


def _names_of(parts: Sequence[str]) -> tuple[str, ...]:
    """Return Ollama's names: the host and the namespace of its own library are left out, and the
    tag `latest` may be."""
    host, namespace, model, tag = parts
    place = (host, namespace) if host != _LIBRARY[0] else (namespace,)
    name = "/".join((*place, model) if (host, namespace) != _LIBRARY else (model,))
    return (name, f"{name}:{tag}") if tag == "latest" else (f"{name}:{tag}",)


def _blob_of(manifest: Path) -> str:
    """Return the name of a manifest's GGUF blob, or ""."""
    try:
        if not manifest.is_file() or manifest.stat().st_size > _MOST_MANIFEST_BYTES:
            return ""
        content: Any = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return ""
    layers = content.get("layers") if isinstance(content, Mapping) else None
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, Mapping) and layer.get("mediaType") == _MODEL_LAYER:
            digest = layer.get("digest")
            if isinstance(digest, str) and _DIGEST.fullmatch(digest):
                return digest.replace(":", "-")
    return ""
