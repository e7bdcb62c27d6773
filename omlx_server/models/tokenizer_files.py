"""Reads what the files of a model's tokenizer say, without the tokenizer, which takes seconds to
import.

Files are read as transformers reads them, anew each time; any thread. A file of a model that can't
be read says nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.core.model_files.parser_signs import CODED_TEMPLATES
from omlx_server.errors import ConfigError
from omlx_server.models import json_file
from omlx_server.models.kind import read_json

_TEMPLATE = "chat_template.jinja"
_CONFIG = "tokenizer_config.json"
_OF_PROCESSOR = "chat_template.json"
_MORE_TEMPLATES = "additional_chat_templates"
_TOKENS = ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """`templates`: chat templates by name, usually just "default"; `template_file` is the name of
    the file that has it, "" for none. `vocabulary`: every token as the files write it.
    `tool_parser`: what the configuration calls the markup of tool calls, or None."""

    templates: Mapping[str, str]
    vocabulary: frozenset[str]
    tool_parser: str | None
    template_file: str = ""

    @classmethod
    def of(cls, directory: Path) -> "TokenizerFiles":
        config = _object(directory / _CONFIG)
        parser = config.get("tool_parser_type")
        other = _object(directory / _OF_PROCESSOR)
        coded = CODED_TEMPLATES.get(str(config.get("chat_template_type")))
        places = {
            _TEMPLATE: {} if coded else _templates_of_files(directory),
            _CONFIG: _templates_of(coded or config.get("chat_template")),
            _OF_PROCESSOR: _templates_of(other.get("chat_template")),
        }
        file = next((name for name, found in places.items() if found), "")
        return cls(
            template_file=file,
            templates=places.get(file, {}),
            vocabulary=frozenset(_tokens(directory, config)),
            tool_parser=parser if isinstance(parser, str) else None,
        )


def _templates_of_files(directory: Path) -> dict[str, str]:
    """They go before those in the configuration."""
    files = {"default": directory / _TEMPLATE}
    files |= {path.stem: path for path in sorted((directory / _MORE_TEMPLATES).glob("*.jinja"))}
    found = {}
    for name, path in files.items():
        try:
            found[name] = _template(path)
        except json_file.PROBLEMS:
            continue
    return found


def read_template(path: str) -> str:
    """The chat template in a file of the user's own. Raises ConfigError, with the path in its
    message, if the file can't be read or is no UTF-8 text."""
    try:
        return _template(Path(path))
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except ValueError as error:
        reason = str(error)
    raise ConfigError(f"{path} can't be read: {reason}")


def _template(path: Path) -> str:
    return json_file.text(path).replace("\r\n", "\n")


def _templates_of(said: object) -> dict[str, str]:
    """One, some by name, or a list of such."""
    if isinstance(said, list):
        said = {one.get("name"): one.get("template") for one in said if isinstance(one, dict)}
    if not isinstance(said, dict):
        said = {"default": said}
    return {str(name): source for name, source in said.items() if isinstance(source, str)}


def _tokens(directory: Path, config: Mapping[str, Any]) -> Iterator[str]:
    whole = _object(directory / "tokenizer.json")
    model = whole.get("model")
    yield from _texts(_pieces(model.get("vocab") if isinstance(model, dict) else None))
    yield from _texts(_members(whole.get("added_tokens")))
    yield from _object(directory / "added_tokens.json")
    for said in (config, _object(directory / "special_tokens_map.json")):
        yield from _texts(value for key, value in said.items() if key.endswith("_token"))
        for key in _TOKENS:
            yield from _texts(_members(said.get(key)))


def _pieces(vocabulary: object) -> Iterable[object]:
    """Of a unigram model each comes with its score."""
    if isinstance(vocabulary, list):
        return [piece[0] for piece in vocabulary if isinstance(piece, list) and piece]
    return vocabulary if isinstance(vocabulary, dict) else ()


def _members(said: object) -> Iterable[object]:
    if isinstance(said, dict):
        return said.values()
    return said if isinstance(said, list) else ()


def _texts(tokens: Iterable[object]) -> Iterator[str]:
    """A token is its text, or a table that holds it."""
    for token in tokens:
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            yield text


def _object(path: Path) -> dict[str, Any]:
    said = read_json(path)
    return said if isinstance(said, dict) else {}
