"""Tells by a model's files whether it thinks, calls tools or fills text in. Any thread."""

import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from omlx_server.core.model_files.parser_signs import reasoning_parser_of
from omlx_server.errors import ConfigError
from omlx_server.models.tokenizer_files import TokenizerFiles, read_template, read_templates
from omlx_server.text.dialect import FILL_IN
from omlx_server.text.reasoning.style import STYLES
from omlx_server.text.tool_calls.fallback import shows_tools

FileState = tuple[str, int, float]
"""A file's name, its size in bytes and when it was changed."""

_CACHED_MODELS = 256
_VOCABULARY_LOCK = threading.Lock()
"""Held while a vocabulary is read: clients ask for all models at once."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """`insert`: it can fill in text before a suffix."""

    template: str = ""
    tools: bool = False
    thinking: bool = False
    insert: bool = False


def read_abilities(
    directory: Path | None, template_file: str = "", reasoning_parser: str = ""
) -> Abilities:
    """Return the abilities by the tokenizer's files, or by the template and reasoning parser of the
    settings. Slow the first time: the files are large."""
    with _VOCABULARY_LOCK:
        return _abilities(directory, template_file, reasoning_parser, has_vocabulary=True)


def abilities_by_template(
    directory: Path | None, template_file: str = "", reasoning_parser: str = ""
) -> Abilities:
    """Return what `read_abilities` does, but for `insert`, quickly: without the vocabulary."""
    return _abilities(directory, template_file, reasoning_parser, has_vocabulary=False)


def _abilities(
    directory: Path | None, template_file: str, reasoning_parser: str, *, has_vocabulary: bool
) -> Abilities:
    states = file_states(directory, *([Path(template_file)] if template_file else ()))
    if directory is None or states is None:
        return Abilities()
    return _read(directory, template_file, reasoning_parser, states, has_vocabulary)


# `states` are in the cache's keys only: a changed file is read again.
@lru_cache(2 * _CACHED_MODELS)
def _read(
    directory: Path,
    template_file: str,
    reasoning_parser: str,
    states: tuple[FileState, ...],
    has_vocabulary: bool,
) -> Abilities:
    vocabulary = frozenset[str]()
    if has_vocabulary:
        files = TokenizerFiles.of(directory)
        templates, vocabulary = files.templates, files.vocabulary
    else:
        _, templates = read_templates(directory)
    if template_file:
        templates = _templates_in_force(template_file)
    return _abilities_of(templates, vocabulary, reasoning_parser)


def _templates_in_force(template_file: str) -> dict[str, str]:
    with suppress(ConfigError):
        return {"default": read_template(template_file)}
    return {}


def _abilities_of(
    templates: Mapping[str, str], vocabulary: Collection[str], reasoning_parser: str
) -> Abilities:
    sources, tokens = list(templates.values()), frozenset(vocabulary)
    all_sources = "\n".join(sources)
    style = STYLES[reasoning_parser or reasoning_parser_of(all_sources, tokens)]
    return Abilities(
        template=templates.get("default", ""),
        tools=any(map(shows_tools, sources)),
        thinking=style is not None and style.start in all_sources,
        insert=any(tokens.issuperset(fill_in) for fill_in in FILL_IN),
    )


def file_states(directory: Path | None, *others: Path) -> tuple[FileState, ...] | None:
    """Return the states of the directory's files and of `others`, None if they are unreadable."""
    if directory is None:
        return None
    try:
        statuses = [(file.name, file.stat()) for file in sorted([*directory.iterdir(), *others])]
    except OSError:
        return None
    return tuple((name, status.st_size, status.st_mtime) for name, status in statuses)
