"""The answers of admin routes."""

from typing import Literal

from typing_extensions import TypedDict

from omlx_server.api.activity.answers import CacheCounters, LoadProgress
from omlx_server.api.http.errors import ErrorDetails
from omlx_server.api.models.listing import ModelFetched

Ability = Literal["tools", "thinking", "images"]


class AdminModel(TypedDict):
    """A model on this machine; its `weight_bytes` and `adapters` in memory. `chunk_tokens` of a
    prompt are prefilled at once beside running answers, `chunk_tokens_alone` without. It leaves
    after `ttl_seconds` without requests, unless that is 0. `fit`: fits, tight or too large, with
    32k tokens of context. `experts` says how many are in memory, if others stay on the disk.
    `problem`: why it can't be loaded or served."""

    name: str
    names: list[str]
    aliases: list[str]
    path: str | None
    abilities: list[Ability]
    presets: list[str]
    fit: str | None
    kind: Literal["chat", "embedding", "rerank", "unknown"]
    state: Literal["absent", "loading", "loaded", "unloading", "failed"]
    load: LoadProgress | None
    pinned: bool
    default: bool
    weight_bytes: int | None
    adapters: list[str]
    disk_bytes: int | None
    experts: str | None
    context_length: int | None
    chunk_tokens: int | None
    chunk_tokens_alone: int | None
    in_use: int
    idle_seconds: float | None
    ttl_seconds: float
    problem: str | None


class AdminMemory(TypedDict):
    """Bytes: the server's limit, and the weights of all models."""

    limit: int
    weights: int


class AdminModels(TypedDict):
    models: list[AdminModel]
    memory: AdminMemory


class MapBlock(TypedDict):
    """A block with the tokens from `start` to before `stop`; `parent` is null at the start of a
    prompt. `bytes` includes its checkpoints. `idle_seconds` is null in the cold tier."""

    id: str
    parent: str | None
    start: int
    stop: int
    bytes: int
    tier: Literal["hot", "cold"]
    pinned: bool
    in_use: bool
    idle_seconds: float | None
    checkpoint: bool


class CacheMap(TypedDict):
    """The blocks that were used last, at most 4,000, parents before their children, without
    `left_out` more. Blocks in the cold tier that were not read yet are not counted."""

    model: str
    block_tokens: int
    counters: CacheCounters
    blocks: list[MapBlock]
    left_out: int


class CacheStretch(TypedDict):
    """Tokens from `start` to before `stop` of a prompt; `tier` is null where no tier has them."""

    start: int
    stop: int
    tier: Literal["hot", "cold"] | None


class CacheComparison(TypedDict):
    """The point where a prompt leaves what is cached. `pieces`: the text of each token from
    `pieces_start` on, at most 20,000. From the token `diverges_at` on nothing is cached; null where
    all is, but for the last token, which is always computed. `stored`: the text of the next tokens,
    at most 64, of the nearest cached prompt."""

    model: str
    prompt_tokens: int
    cached_tokens: int
    block_tokens: int
    blocks: list[CacheStretch]
    pieces: list[str]
    pieces_start: int
    diverges_at: int | None
    stored: list[str]


class ModelRemoved(TypedDict):
    model: str
    freed_bytes: int


class FetchProgress(TypedDict):
    """`done` of `total` in bytes, or in tensors, of one `stage`: look, download, verify and the
    like. The stages come one after another. `total` is 0 while it is not known."""

    type: Literal["progress"]
    stage: str
    done: int
    total: int


class FetchError(TypedDict):
    """The last event of a fetch that failed."""

    type: Literal["error"]
    error: ErrorDetails


FetchEvent = FetchProgress | ModelFetched | FetchError
