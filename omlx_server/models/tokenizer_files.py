"""Reads a model's tokenizer files without importing the tokenizer, which is slow. Files that
can't be read are ignored."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.core.model_files.parser_signs import CODED_TEMPLATES
from omlx_server.errors import ConfigError
from omlx_server.models import json_file
from omlx_server.models.json_file import read_object

TEMPLATE = "chat_template.jinja"
_CONFIG = "tokenizer_config.json"
_OF_PROCESSOR = "chat_template.json"
_MORE_TEMPLATES = "additional_chat_templates"
_TOKENS = ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Chat `templates` by name, from `template_file`; `vocabulary`: every token as written;
    `tool_parser`: the configured markup of tool calls."""

    templates: Mapping[str, str]
    vocabulary: frozenset[str]
    tool_parser: str | None
    template_file: str = ""

    @classmethod
    def of(cls, directory: Path) -> "TokenizerFiles":
        config = read_object(directory / _CONFIG)
        parser = config.get("tool_parser_type")
        file, templates = read_templates(directory)
        return cls(
            template_file=file,
            templates=templates,
            vocabulary=frozenset(_tokens(directory, config)),
            tool_parser=parser if isinstance(parser, str) else None,
        )


def read_templates(directory: Path) -> tuple[str, Mapping[str, str]]:
    """Return a model's chat templates by name, and the name of their file."""
    config, other = read_object(directory / _CONFIG), read_object(directory / _OF_PROCESSOR)
    coded = CODED_TEMPLATES.get(str(config.get("chat_template_type")))
    places = {
        TEMPLATE: {} if coded else _templates_of_files(directory),
        _CONFIG: _templates_of(coded or config.get("chat_template")),
        _OF_PROCESSOR: _templates_of(other.get("chat_template")),
    }
    file = next((name for name, templates in places.items() if templates), "")
    return file, places.get(file, {})


def _templates_of_files(directory: Path) -> dict[str, str]:
    files = {"default": directory / TEMPLATE}
    files |= {path.stem: path for path in sorted((directory / _MORE_TEMPLATES).glob("*.jinja"))}
    templates = {}
    for name, path in files.items():
        try:
            templates[name] = _template(path)
        except json_file.PROBLEMS:
            continue
    return templates


def read_template(path: str) -> str:
    """Raises ConfigError if the user's chat template can't be read."""
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


def _templates_of(value: object) -> dict[str, str]:
    if isinstance(value, list):
        value = {one.get("name"): one.get("template") for one in value if isinstance(one, dict)}
    if not isinstance(value, dict):
        value = {"default": value}
    return {str(name): source for name, source in value.items() if isinstance(source, str)}


def _tokens(directory: Path, config: Mapping[str, Any]) -> Iterator[str]:
    whole = read_object(directory / "tokenizer.json")
    model = whole.get("model")
    yield from _texts(_pieces(model.get("vocab") if isinstance(model, dict) else None))
    yield from _texts(_members(whole.get("added_tokens")))
    yield from read_object(directory / "added_tokens.json")
    for content in (config, read_object(directory / "special_tokens_map.json")):
        yield from _texts(value for key, value in content.items() if key.endswith("_token"))
        for key in _TOKENS:
            yield from _texts(_members(content.get(key)))


def _pieces(vocabulary: object) -> Iterable[object]:
    if isinstance(vocabulary, list):
        return [piece[0] for piece in vocabulary if isinstance(piece, list) and piece]
    return vocabulary if isinstance(vocabulary, dict) else ()


def _members(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _texts(tokens: Iterable[object]) -> Iterator[str]:
    for token in tokens:
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            yield text
