"""What admin routes answer."""

from typing import Literal

from typing_extensions import TypedDict

from omlx_server.api.activity.answers import CacheCounters


class AdminModel(TypedDict):
    """`weight_bytes` of one that is loaded, `disk_bytes` of its files. One that chats prefills
    prompts in chunks of `chunk_tokens` beside running answers, of `chunk_tokens_alone` else; null
    while it is not loaded. `in_use` by so many
    requests; it leaves after `ttl_seconds` without any, unless that is 0. `problem`: why the last
    try to load it failed."""

    name: str
    names: list[str]
    kind: Literal["chat", "embedding", "rerank"]
    state: Literal["absent", "loading", "loaded", "unloading", "failed"]
    pinned: bool
    default: bool
    weight_bytes: int | None
    disk_bytes: int | None
    context_length: int | None
    chunk_tokens: int | None
    chunk_tokens_alone: int | None
    in_use: int
    idle_seconds: float | None
    ttl_seconds: float
    problem: str | None


class AdminMemory(TypedDict):
    """Bytes: what the server may hold, and what the weights of all models hold."""

    limit: int
    weights: int


class AdminModels(TypedDict):
    models: list[AdminModel]
    memory: AdminMemory


class MapBlock(TypedDict):
    """Tokens from `start` to before `stop` after the block `parent`, which is null at the start of
    a prompt. `bytes` counts its checkpoints as well; `checkpoint`: it has any. `in_use`: a request
    at work refers to it. `idle_seconds` is null in the cold tier."""

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
    """The blocks that were used last, at most 4,000, parents before their children; `left_out` more
    are there. Blocks that a server has found in its cold tier and not read yet are not counted."""

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
    """Where a prompt leaves what is cached. `pieces`: the text of each token from `pieces_start`
    on, at most 20,000. From the token `diverges_at` on nothing of it is cached; null where all is,
    but for the last token, which is always computed. `stored`: the text of the tokens, at most 64,
    that the nearest cached prompt has from there; empty where it ends there."""

    model: str
    prompt_tokens: int
    cached_tokens: int
    block_tokens: int
    blocks: list[CacheStretch]
    pieces: list[str]
    pieces_start: int
    diverges_at: int | None
    stored: list[str]
