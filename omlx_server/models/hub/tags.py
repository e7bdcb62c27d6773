"""Chooses the files of a GGUF model by its tag, before anything is downloaded."""

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from omlx_server.core.gguf.families import FAMILIES
from omlx_server.core.model_files.gguf_names import (
    choose_tag,
    has_form,
    is_weights,
    parts_of,
    tag_of,
    whole_stem,
)
from omlx_server.errors import ModelUnavailable
from omlx_server.models.hub.remote import Remote, RemoteFile, is_mlx_weights

_MOST_TAGS = 12


def is_gguf(paths: Sequence[str]) -> bool:
    """Return whether a repository's models are GGUF files."""
    return any(map(is_weights, paths)) and not any(map(is_mlx_weights, paths))


def with_tag(remote: Remote, files: Sequence[RemoteFile], asked: str, architecture: str) -> Remote:
    """Return the commit with those of its `files` that the tag names. Raises ModelUnavailable if
    there are none, or they can't be served."""
    by_tag: dict[str, list[RemoteFile]] = {}
    for file in files:
        if is_weights(file.path) and file.sha256 and (tag := tag_of(file.path)):
            by_tag.setdefault(tag, []).append(file)
    tag = choose_tag(by_tag, asked)
    if not tag:
        raise _not_chosen(remote, by_tag, asked)
    parts = sorted(by_tag[tag], key=lambda file: file.path)
    others = tuple(sorted({file.path for file in files} - {file.path for file in parts}))
    chosen = replace(remote, files=tuple(parts), others=others, tag=tag)
    _check_parts(chosen)
    if not has_form(tag):
        raise _others(remote, f"has no form in MLX as {tag}", by_tag)
    if architecture and architecture not in FAMILIES:
        raise remote.unfit(f"is of the architecture {architecture!r}, which is not served as GGUF")
    return chosen


def _check_parts(chosen: Remote) -> None:
    paths = [file.path for file in chosen.files]
    if len({whole_stem(path) for path in paths}) > 1:
        names = ", ".join(paths)
        raise chosen.unfit(f"has several models of {chosen.tag}: {names}", "Get one by hand.")
    if missing := [path for path in parts_of(paths[0]) if path not in paths]:
        raise chosen.unfit(f"has no {missing[0]}")


def _not_chosen(remote: Remote, tags: Collection[str], asked: str) -> ModelUnavailable:
    if not tags:
        alone = (
            f"Take it without a tag: {remote.repo_id}"
            if any(is_mlx_weights(file.path) for file in remote.files)
            else ""
        )
        return remote.unfit("has no GGUF files that are named by their type", alone)
    if not asked:
        return _others(remote, f"has {len(tags)} GGUF models", sorted(tags))
    near = difflib.get_close_matches(asked, tags, n=len(tags), cutoff=0.0)
    return _others(remote, f"has no GGUF file of {asked}", near)


def _others(remote: Remote, reason: str, tags: Iterable[str]) -> ModelUnavailable:
    served = [tag for tag in tags if has_form(tag)][:_MOST_TAGS]
    hint = f"Take one of {remote.repo_id}:{', '.join(served)}" if served else ""
    return remote.unfit(reason, hint)
