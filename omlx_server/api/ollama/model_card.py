"""Facts about a model's files for Ollama's clients. Any thread.

Reads the disk, and caches the facts of 256 models until their files change. Raises nothing: what is
unreadable is empty or 0.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping
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

_CACHED_MODELS = 256
_VOCABULARY_LOCK = threading.Lock()
"""Held while a vocabulary is read: clients ask for all models at once."""
_DEFAULT_GROUP_SIZE = 64
_OLLAMA_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_PARAMETER_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
# Keys of config.json, and Ollama's names for them below the architecture.
_OLLAMA_SIZE_NAMES = {
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
    """Abilities of a model. `insert`: it can fill in text before a suffix."""

    template: str = ""
    tools: bool = False
    thinking: bool = False
    insert: bool = False


def read_card(directory: Path | None) -> ModelCard:
    states = _file_states(directory)
    if directory is None or states is None:
        return ModelCard()
    return _read_cached_card(directory, states)


@lru_cache(_CACHED_MODELS)
def _read_cached_card(directory: Path, states: tuple[FileState, ...]) -> ModelCard:
    config = read_object(directory / "config.json")
    text_config = config.get("text_config")
    merged = {**config, **text_config} if isinstance(text_config, dict) else config
    sizes = ((name, merged.get(key)) for key, name in _OLLAMA_SIZE_NAMES.items())
    dtype = merged.get("dtype") or merged.get("torch_dtype")
    digested = f"{directory.name} {config!r} {[(name, size) for name, size, _ in states]}"
    return ModelCard(
        family=str(config.get("model_type", "")),
        quantization=quantization_of(config) or _OLLAMA_DTYPES.get(str(dtype), ""),
        parameters=_count_parameters(directory, config),
        sizes=tuple((name, size) for name, size in sizes if type(size) is int),
        modified=max((changed for _, _, changed in states), default=0.0),
        digest=hashlib.sha256(digested.encode(errors="replace")).hexdigest(),
    )


def _count_parameters(directory: Path, config: Mapping[str, Any]) -> int:
    group_size = own_quantization(config).get("group_size")
    if type(group_size) is not int or group_size <= 0:
        group_size = _DEFAULT_GROUP_SIZE
    tensors: dict[str, TensorHeader] = {}
    try:
        for file in layout.weight_files(directory):
            header = read_header(file)
            tensors |= header.tensors if header else {}
    except (ModelUnavailable, OSError, ValueError):
        return 0
    return sum(_tensor_parameters(tensors, group_size))


def _tensor_parameters(tensors: Mapping[str, TensorHeader], group_size: int) -> Iterator[int]:
    """Yield each tensor's parameters. A weight packed into words of 32 bits has `group_size` for
    each of its scales."""
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        is_quantized = f"{stem}.scales" in tensors
        if is_quantized and kind in ("scales", "biases"):
            continue
        if is_quantized and kind == "weight" and tensor.dtype == "U32":
            yield prod(tensors[f"{stem}.scales"].shape) * group_size
        else:
            yield prod(tensor.shape)


def in_words(parameters: int) -> str:
    """Return a number of parameters as "8.0B" or "135M"; empty for 0."""
    for unit, letter in _PARAMETER_UNITS:
        if parameters >= unit:
            return f"{parameters / unit:.{1 if unit >= 10**9 else 0}f}{letter}"
    return str(parameters or "")


def read_abilities(
    directory: Path | None, template_file: str = "", reasoning_parser: str = ""
) -> Abilities:
    """Return the abilities by the tokenizer's files, or by the template and reasoning parser of the
    settings. Slow the first time: the files are large."""
    states = _file_states(directory, *([Path(template_file)] if template_file else ()))
    if directory is None or states is None:
        return Abilities()
    with _VOCABULARY_LOCK:
        return _read_abilities(directory, template_file, reasoning_parser, states)


@lru_cache(_CACHED_MODELS)
def _read_abilities(
    directory: Path, template_file: str, reasoning_parser: str, states: tuple[FileState, ...]
) -> Abilities:
    """`states` are in the cache's key only: a changed file is read again."""
    files = TokenizerFiles.of(directory)
    templates = files.templates
    if template_file:
        templates = {}
        with suppress(ConfigError):
            templates = {"default": read_template(template_file)}
    sources = list(templates.values())
    all_sources = "\n".join(sources)
    style = STYLES[reasoning_parser or reasoning_parser_of(all_sources, files.vocabulary)]
    return Abilities(
        template=templates.get("default", ""),
        tools=any(map(_supports_tools, sources)),
        thinking=style is not None and style.start in all_sources,
        insert=any(files.vocabulary.issuperset(tokens) for tokens in FILL_IN),
    )


def _supports_tools(template: str) -> bool:
    try:
        return supports_tools(template)
    except RecursionError:
        return False


def _file_states(directory: Path | None, *others: Path) -> tuple[FileState, ...] | None:
    """Return the states of the directory's files and of `others`, None if they are unreadable."""
    if directory is None:
        return None
    try:
        statuses = [(file.name, file.stat()) for file in sorted([*directory.iterdir(), *others])]
    except OSError:
        return None
    return tuple((name, status.st_size, status.st_mtime) for name, status in statuses)
