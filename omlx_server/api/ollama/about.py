"""Facts about a model's files for Ollama's clients. Any thread.

Reads the disk, and caches the facts of 256 models until their files change. Raises nothing: what is
unreadable is empty or 0.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from omlx_server.core.model_files.parser_signs import reasoning_parser_of
from omlx_server.core.model_files.quantization import own_quantization, quantization_of
from omlx_server.errors import ConfigError, ModelUnavailable
from omlx_server.models import layout
from omlx_server.models.json_file import read_object
from omlx_server.models.safetensors_header import TensorHeader, read_header
from omlx_server.models.tokenizer_files import TokenizerFiles, read_template
from omlx_server.text.fill_in import FILL_IN
from omlx_server.text.reasoning.style import STYLES
from omlx_server.text.tool_calls.fallback import supports_tools

FileState = tuple[str, int, float]
"""A file's name, its size in bytes and when it was changed."""

_KEPT = 256
_READING = threading.Lock()
"""Held while a vocabulary is read: clients ask for all models at once."""
_GROUP_SIZE = 64
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
# Keys of config.json, and Ollama's names for them below the architecture.
_SIZES = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Facts about a model. `sizes`: numbers of layers and the like, by Ollama's names. `modified`:
    seconds since 1970. `digest` covers the configuration and all files' names and sizes; clients
    cache by it."""

    family: str = ""
    quantization: str = ""
    parameters: int = 0
    sizes: tuple[tuple[str, int], ...] = ()
    modified: float = 0.0
    digest: str = "0" * 64


@dataclass(frozen=True, slots=True)
class Abilities:
    template: str = ""
    tools: bool = False
    thinking: bool = False
    insert: bool = False


def about(directory: Path | None) -> ModelCard:
    if directory is None:
        return ModelCard()
    try:
        states = _states(directory.iterdir())
    except OSError:
        return ModelCard()
    return _about(directory, states)


def abilities(
    directory: Path | None, template_file: str = "", reasoning_parser: str = ""
) -> Abilities:
    """Return the abilities by the tokenizer's files, or by the template and reasoning parser of the
    settings. Slow the first time: the files are large."""
    if directory is None:
        return Abilities()
    override = [Path(template_file)] if template_file else []
    try:
        states = _states([*directory.iterdir(), *override])
    except OSError:
        return Abilities()
    with _READING:
        return _abilities(directory, template_file, reasoning_parser, states)


def _states(files: Iterable[Path]) -> tuple[FileState, ...]:
    states = [(file.name, file.stat()) for file in sorted(files)]
    return tuple((name, state.st_size, state.st_mtime) for name, state in states)


@lru_cache(_KEPT)
def _abilities(
    directory: Path, template_file: str, reasoning_parser: str, states: tuple[FileState, ...]
) -> Abilities:
    files = TokenizerFiles.of(directory)
    templates = files.templates
    if template_file:
        templates = {}
        with suppress(ConfigError):
            templates = {"default": read_template(template_file)}
    sources = list(templates.values())
    template = "\n".join(sources)
    style = STYLES[reasoning_parser or reasoning_parser_of(template, files.vocabulary)]
    return Abilities(
        template=templates.get("default", ""),
        tools=any(map(_supports_tools, sources)),
        thinking=style is not None and style.start in template,
        insert=any(files.vocabulary.issuperset(tokens) for tokens in FILL_IN),
    )


def in_words(parameters: int) -> str:
    """Return a number of parameters as "8.0B" or "135M"; empty for 0."""
    for unit, letter in _UNITS:
        if parameters >= unit:
            return f"{parameters / unit:.{int(unit >= 10**9)}f}{letter}"
    return str(parameters or "")


@lru_cache(_KEPT)
def _about(directory: Path, states: tuple[FileState, ...]) -> ModelCard:
    config = read_object(directory / "config.json")
    inner = config.get("text_config")
    text = {**config, **(inner if isinstance(inner, dict) else {})}
    sizes = ((ours, text.get(theirs)) for theirs, ours in _SIZES.items())
    mark = f"{directory.name} {config!r} {[(name, size) for name, size, _ in states]}"
    dtype = text.get("dtype") or text.get("torch_dtype")
    return ModelCard(
        family=str(config.get("model_type", "")),
        quantization=quantization_of(config) or _DTYPES.get(str(dtype), ""),
        parameters=_parameters(directory, config),
        sizes=tuple((name, size) for name, size in sizes if type(size) is int),
        modified=max((changed for _, _, changed in states), default=0.0),
        digest=hashlib.sha256(mark.encode(errors="replace")).hexdigest(),
    )


def _supports_tools(template: str) -> bool:
    try:
        return supports_tools(template)
    except RecursionError:
        return False


def _parameters(directory: Path, config: Mapping[str, Any]) -> int:
    group = own_quantization(config).get("group_size")
    size = group if type(group) is int and group > 0 else _GROUP_SIZE
    tensors: dict[str, TensorHeader] = {}
    try:
        for file in layout.weight_files(directory):
            header = read_header(file)
            tensors |= header.tensors if header else {}
    except (ModelUnavailable, OSError, ValueError):
        return 0
    return sum(_tensor_parameters(tensors, size))


def _tensor_parameters(tensors: Mapping[str, TensorHeader], group: int) -> Iterator[int]:
    """Yield each tensor's parameters. A weight packed into words of 32 bits has `group` for each of
    its scales."""
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        packed = f"{stem}.scales" in tensors
        if packed and kind in ("scales", "biases"):
            continue
        if packed and kind == "weight" and tensor.dtype == "U32":
            yield prod(tensors[f"{stem}.scales"].shape) * group
        else:
            yield prod(tensor.shape)
