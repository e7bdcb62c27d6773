"""Reads and checks the chat templates in `models.overrides`. Imports jinja, which takes long."""

from collections.abc import Iterable, Iterator

from omlx_server.errors import ConfigError
from omlx_server.models.tokenizer_files import read_template
from omlx_server.settings import Settings
from omlx_server.settings.override_keys import TABLE
from omlx_server.text.templates.check import check_template
from omlx_server.wiring.overrides.names import check_overrides


def check_all(settings: Settings) -> None:
    """Check parsers, template variables and template files of all overrides. Raises ConfigError."""
    check_overrides(settings)
    check_templates(settings)


def check_templates(settings: Settings) -> None:
    """Check the template files of all overrides. Raises ConfigError."""
    for error in template_problems(settings):
        raise error


def template_problems(settings: Settings) -> Iterator[ConfigError]:
    for name, overrides in settings.models.overrides.items():
        if overrides.chat_template:
            try:
                checked_template(name, overrides.chat_template)
            except ConfigError as error:
                yield error


def template_of(names: Iterable[str], settings: Settings) -> str | None:
    """Return the text of a model's template in the overrides, if any. Raises ConfigError."""
    names = tuple(names)
    path = settings.overrides_of(names).chat_template
    return checked_template(names[0], path) if path else None


def checked_template(name: str, path: str) -> str:
    """Return the template at `path`. Raises ConfigError with key, path and line number."""
    try:
        source = read_template(path)
        check_template(source, path)
    except ConfigError as error:
        raise ConfigError(f"{TABLE}.{name}.chat_template: {error.message}") from None
    return source
