"""Shows a GGUF file as a model directory: its config and tokenizer, made once from the file's head,
and a link to the file itself, which is neither copied nor changed."""

import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omlx_server.core.gguf.families import config_of
from omlx_server.core.gguf.forms import bytes_in_mlx, check_types, count_values, main_type
from omlx_server.core.gguf.head import GgufHead, parse_head
from omlx_server.core.model_files.weights import GGUF, GGUF_LINKS
from omlx_server.errors import ModelUnavailable, one_line
from omlx_server.models.gguf.tokenizer import build_tokenizer, end_ids, tokenizer_config
from omlx_server.models.staging import prepare, staged

VIEWS = ".gguf"
"""The folder of views, beside the server's own models."""
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_VIEW_BYTES = 50_000_000  # the tokenizer of a large vocabulary
_ROPE_FACTORS = "rope_freqs.weight"


def view_of(file: Path, views: Path) -> Path:
    """Return the directory that shows a file, without its tokenizer at first. Raises
    ModelUnavailable for a file that can't be served."""
    files = _parts(file)
    target = views / _name(files)
    if (target / "config.json").is_file():
        return target
    heads = [_head(part) for part in files]
    tensors = [tensor for head in heads for tensor in head.tensors]
    head = GgufHead(heads[0].fields, tuple(tensors))
    try:
        config = config_of(head, _rope_factors(files[0], heads[0]))
        check_types(tensors)
    except ValueError as error:
        raise _unfit(file, error) from error
    config[GGUF] = {
        "type": main_type(tensors),
        "weight_bytes": bytes_in_mlx(tensors),
        "parameters": count_values(tensors),
    }
    prepare(views, file.name, _VIEW_BYTES)
    with staged(target, lambda path: (path / "config.json").is_file()) as work:
        for number, part in enumerate(files, start=1):
            name = f"{number:05}-of-{len(files):05}"
            (work / "model" / GGUF_LINKS.replace("*", name)).symlink_to(part)
        _write_json(work / "model" / "config.json", config)
    return target


def is_model(file: Path) -> bool:
    """Return whether it is a whole model by its name, or the first part of one."""
    split = _SPLIT.fullmatch(file.stem)
    is_first = split is None or int(split["number"]) == 1
    return is_first and file.suffix == ".gguf" and file.is_file()


def complete(directory: Path) -> None:
    """Make the tokenizer of a view, unless it is there. Raises ModelUnavailable."""
    links = sorted(directory.glob(GGUF_LINKS))
    if not links or (directory / "tokenizer.json").is_file():
        return
    file = links[0].resolve()
    fields = _head(file).fields
    try:
        context = json.loads((directory / "config.json").read_bytes())["max_position_embeddings"]
        tokenizer, ids = build_tokenizer(fields), end_ids(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise _unfit(file, error) from error
    roles = ("bos", "padding")
    named = {f"{role}_token_id": fields.get(f"tokenizer.ggml.{role}_token_id") for role in roles}
    generation = {"bos_token_id": named["bos_token_id"], "pad_token_id": named["padding_token_id"]}
    generation = {name: id for name, id in generation.items() if id is not None}
    _write_json(directory / "generation_config.json", {**generation, "eos_token_id": ids})
    _write_json(directory / "tokenizer_config.json", tokenizer_config(fields, context))
    # The last, since it says that all are there.
    scratch = directory / f".tokenizer-{os.getpid()}"
    tokenizer.save(str(scratch))
    scratch.replace(directory / "tokenizer.json")


def _parts(file: Path) -> list[Path]:
    """Return all files of a split model, the first of which has its fields."""
    file = file.resolve()
    split = _SPLIT.fullmatch(file.stem)
    if split is None:
        return [file]
    stem, count = split["stem"], split["count"]
    names = [f"{stem}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]
    if missing := [name for name in names if not (file.parent / name).is_file()]:
        raise ModelUnavailable(f"{file.parent} has no {missing[0]}")
    return [file.parent / name for name in names]


def _name(files: list[Path]) -> str:
    """Return a view's name: another one for a file that changed."""
    try:
        states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise _unfit(files[0], error) from error
    return f"{files[0].stem}-{hashlib.sha256(repr(states).encode()).hexdigest()[:12]}"


def _head(file: Path) -> GgufHead:
    try:
        with file.open("rb") as stream:
            return parse_head(stream, file.stat().st_size)
    except (OSError, ValueError) as error:
        raise _unfit(file, error) from error


def _rope_factors(file: Path, head: GgufHead) -> list[float]:
    place = next((tensor for tensor in head.tensors if tensor.name == _ROPE_FACTORS), None)
    if place is None or place.kind.name != "F32":
        return []
    with file.open("rb") as stream:
        stream.seek(place.start)
        data = stream.read(place.nbytes)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def _unfit(file: Path, error: Exception) -> ModelUnavailable:
    return ModelUnavailable(f"{file} can't be served: {one_line(error)}")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
