"""Reads and checks the chat templates that `models.overrides` name instead of the models' own.
This is a module of its own because jinja takes a while to import: a command loads it only for
settings that name a template."""

from collections.abc import Iterable

from omlx_server.errors import ConfigError
from omlx_server.models.tokenizer_files import read_template
from omlx_server.settings import Settings
from omlx_server.settings.override_keys import TABLE
from omlx_server.text.templates.check import check_template
from omlx_server.wiring.overrides.names import check_overrides


def check_all(settings: Settings) -> None:
    """Check all that overrides name: parsers, template variables, and files of chat templates.

    Raises:
        ConfigError: there is no such name, or a file can't be read or holds no usable template.
    """
    check_overrides(settings)
    check_templates(settings)


def check_templates(settings: Settings) -> None:
    """Check the files of chat templates that overrides name. Raises ConfigError as `check_all`."""
    for name, own in settings.models.overrides.items():
        if own.chat_template:
            checked_template(name, own.chat_template)


def template_of(names: Iterable[str], settings: Settings) -> str | None:
    """The text of the template that stands for the own one of a model with these names, as its file
    is now; None if it keeps its own. Raises ConfigError as `check_all`."""
    names = tuple(names)
    path = settings.overrides_of(names).chat_template
    return checked_template(names[0], path) if path else None


def checked_template(name: str, path: str) -> str:
    """The template in the file at `path`, which an override of the model `name` names. Raises
    ConfigError, in one line with the key, the path and the line number, for a file that can't be
    used."""
    try:
        source = read_template(path)
        check_template(source, path)
    except ConfigError as error:
        raise ConfigError(f"{TABLE}.{name}.chat_template: {error.message}") from None
    return source
