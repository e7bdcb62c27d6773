"""Parses names of the hub's models: org/name, org/name@revision, org/name:TAG for GGUF files, an
address, or a short name."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import unquote

from omlx_server.core.memory.fit import CONTEXT, Fit, fit_of
from omlx_server.core.model_files.gguf_names import choose_tag, is_tag, tag_of

MLX_COMMUNITY = "mlx-community"
"""An organisation of the hub that publishes MLX weights only."""
MAIN = "main"
LONGEST_NAME = 1024
"""The most characters of what may name a model."""
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REVISION = re.compile(r"[\w.-]+")
# A name with a revision, a tag, or both in either order.
_WITH_ENDS = re.compile(r"([^@:]+)(?:@([^@:]+))?(?::([^@:]+))?(?:@([^@:]+))?")
_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_HUB_SCHEME = "hf://"
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co")
# Words in place of the organisation, in addresses of other things than models.
_NO_ORGS = ("api", "blog", "collections", "datasets", "docs", "models", "papers", "spaces")
# Words before the revision, in addresses of directories, files and commits.
_PAGES = ("tree", "blob", "resolve", "raw", "commit", "commits")


@dataclass(frozen=True, slots=True)
class ShortName:
    """`kv`: layers that keep all tokens, heads of keys in each, width of a head."""

    name: str
    repo_id: str
    disk_bytes: int
    context: int
    kv: tuple[int, int, int]
    abilities: tuple[str, ...]

    def fit(self, limit: int) -> Fit:
        return fit_of(self.disk_bytes, self.token_bytes, limit, self.context)

    @property
    def token_bytes(self) -> int:
        return prod(self.kv) * _BYTES_OF_KEY_AND_VALUE


def _row(
    name: str, repo: str, gigabytes: float, context: int, kv: tuple[int, int, int], abilities: str
) -> ShortName:
    repo_id, disk_bytes = f"{MLX_COMMUNITY}/{repo}", round(gigabytes * 1e9)
    return ShortName(name, repo_id, disk_bytes, context, kv, tuple(abilities.split()))


_BYTES_OF_KEY_AND_VALUE = 4  # in half precision
_AGENT = "tools thinking images"
_256K = 262_144
# About: parameters in 4 bits with a scale and a bias for each 64 (4.5 bits), and 16 bits for each
# parameter of a vision tower.
SHORT_NAMES = (
    _row("qwen3-0.6b", "Qwen3-0.6B-4bit", 0.35, 40_960, (28, 8, 128), "tools thinking"),
    _row("llama3.2-1b", "Llama-3.2-1B-Instruct-4bit", 0.7, 131_072, (16, 8, 64), "tools"),
    _row("qwen3-1.7b", "Qwen3-1.7B-4bit", 1.0, 40_960, (28, 8, 128), "tools thinking"),
    _row("qwen3.5-2b", "Qwen3.5-2B-MLX-4bit", 1.7, _256K, (6, 2, 256), _AGENT),
    _row("llama3.2-3b", "Llama-3.2-3B-Instruct-4bit", 1.8, 131_072, (28, 8, 128), "tools"),
    _row("qwen3-4b", "Qwen3-4B-4bit", 2.3, 40_960, (36, 8, 128), "tools thinking"),
    _row("qwen3-4b-2507", "Qwen3-4B-Instruct-2507-4bit", 2.3, _256K, (36, 8, 128), "tools"),
    _row("qwen3.5-4b", "Qwen3.5-4B-MLX-4bit", 3.0, _256K, (8, 4, 256), _AGENT),
    _row("gemma3-4b", "gemma-3-4b-it-4bit", 3.4, 131_072, (5, 4, 256), "images"),
    _row("mistral-7b", "Mistral-7B-Instruct-v0.3-4bit", 4.1, 32_768, (32, 8, 128), "tools"),
    _row("qwen2.5-coder-7b", "Qwen2.5-Coder-7B-Instruct-4bit", 4.3, 32_768, (28, 4, 128), "tools"),
    _row("llama3.1-8b", "Meta-Llama-3.1-8B-Instruct-4bit", 4.5, 131_072, (32, 8, 128), "tools"),
    _row("qwen3-8b", "Qwen3-8B-4bit", 4.6, 40_960, (36, 8, 128), "tools thinking"),
    _row("qwen3.5-9b", "Qwen3.5-9B-MLX-4bit", 6.0, _256K, (8, 4, 256), _AGENT),
    _row("gemma3-12b", "gemma-3-12b-it-4bit", 8.1, 131_072, (8, 8, 256), "images"),
    _row("phi-4", "phi-4-4bit", 8.3, 16_384, (40, 10, 128), ""),
    _row("gpt-oss-20b", "gpt-oss-20b-MXFP4-Q8", 12.1, 131_072, (12, 8, 64), "tools thinking"),
    _row("qwen3.6-27b", "Qwen3.6-27B-4bit", 16.1, _256K, (16, 4, 256), _AGENT),
    _row("qwen3-30b-a3b", "Qwen3-30B-A3B-Instruct-2507-4bit", 17.2, _256K, (48, 4, 128), "tools"),
    _row(
        "qwen3-coder-30b", "Qwen3-Coder-30B-A3B-Instruct-4bit", 17.2, _256K, (48, 4, 128), "tools"
    ),
    _row("qwen3.6-35b-a3b", "Qwen3.6-35B-A3B-4bit", 20.4, _256K, (10, 2, 256), _AGENT),
    _row("llama3.3-70b", "Llama-3.3-70B-Instruct-4bit", 39.7, 131_072, (80, 8, 128), "tools"),
    _row("qwen3.5-122b-a10b", "Qwen3.5-122B-A10B-4bit", 69.6, _256K, (12, 2, 256), _AGENT),
)
"""The smallest first."""
_RECOMMENDED = ("qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.6-35b-a3b", "qwen3.5-122b-a10b")


def find(name: str) -> ShortName | None:
    """Return the row of a short name, in any case; qwen3:4b is qwen3-4b."""
    hyphened = name.lower().replace(":", "-", 1)
    return next((row for row in SHORT_NAMES if row.name == hyphened), None)


def best_that_fits(limit: int, least_context: int = CONTEXT) -> ShortName | None:
    """Return the largest recommended model with room for 32k tokens in `limit` bytes, if any."""
    rows = [row for row in SHORT_NAMES if row.name in _RECOMMENDED and row.fit(limit) is Fit.FITS]
    return next((row for row in reversed(rows) if row.context >= least_context), None)


def matching(text: str) -> list[ShortName]:
    words = text.lower().replace(":", "-").split()
    return [
        row
        for row in SHORT_NAMES
        if all(word in row.name or word in row.repo_id.lower() for word in words)
    ]


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub at a branch, tag or commit; `tag` is the type of a GGUF model."""

    repo_id: str
    revision: str = MAIN
    tag: str = ""

    @property
    def repository(self) -> str:
        return self.repo_id if self.revision == MAIN else f"{self.repo_id}@{self.revision}"

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}" if self.tag else self.repository


class _Named(Protocol):
    @property
    def names(self) -> tuple[str, ...]: ...


_Model = TypeVar("_Model", bound=_Named)


def choose_gguf(wanted: HubName, models: Iterable[_Model]) -> _Model | None:
    """Return the model that the hub would give for a name without a tag, or with a part of one."""
    start = f"{wanted.repository}:"
    tagged = {n.removeprefix(start): m for m in models for n in m.names if n.startswith(start)}
    return tagged.get(choose_tag(tagged, wanted.tag))


def hub_name(text: str) -> HubName | None:
    if len(text) > LONGEST_NAME:
        return None
    text = text.strip()
    short = find(text)
    if short is not None:
        return HubName(short.repo_id)
    if text.lower().startswith(_HUB_SCHEME):
        return _of_path(text[len(_HUB_SCHEME) :])
    address = _SCHEME.sub("", text, count=1)
    mirror = _SCHEME.sub("", os.environ.get("HF_ENDPOINT", ""), count=1).rstrip("/").lower()
    for root in filter(None, (*_HOSTS, mirror)):
        if f"{address}/".lower().startswith(f"{root}/"):
            path = address[len(root) :]
            return _of_path(re.split("[?#]", path, maxsplit=1)[0])
    return _checked(text)


def _of_path(path: str) -> HubName | None:
    words = [unquote(word) for word in path.split("/") if word]
    if len(words) < 2 or words[0] in _NO_ORGS:
        return None
    is_page = len(words) > 3 and words[2] in _PAGES
    revision = words[3] if is_page else MAIN
    tag = tag_of("/".join(words[4:])) if is_page and words[-1].endswith(".gguf") else ""
    return _checked("/".join(words[:2]), revision, tag)


def _checked(text: str, revision: str = MAIN, tag: str = "") -> HubName | None:
    """Return the repository of org/name with its ends, by default this revision and tag."""
    match = _WITH_ENDS.fullmatch(text)
    if match is None or (match[2] and match[4]):
        return None
    revision, tag = match[2] or match[4] or revision, match[3] or tag
    if not _REPO_ID.fullmatch(match[1]) or not _REVISION.fullmatch(revision):
        return None
    if tag and (not is_tag(tag) or match[1].startswith(f"{MLX_COMMUNITY}/")):
        return None
    return HubName(match[1], revision, tag.upper())


def repo_id_of(folder: Path) -> str:
    """Return the id of the model in a folder of a hub's cache, or ""."""
    kind, _, name = folder.name.partition("--")
    return name.replace("--", "/", 1) if kind == "models" and "--" in name else ""
