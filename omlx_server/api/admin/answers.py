"""What admin routes answer."""

from typing import Literal

from typing_extensions import TypedDict


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
