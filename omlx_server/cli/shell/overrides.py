"""Checks the names in `models.overrides` for commands, with no more imports than they need."""

from omlx_server.settings import Settings
from omlx_server.wiring.overrides.names import check_overrides


def check_names(settings: Settings) -> None:
    """Check parsers, template variables, and files of chat templates that overrides name. jinja is
    imported only where there are such files. Raises ConfigError for what `serve` would refuse."""
    check_overrides(settings)
    if any(own.chat_template for own in settings.models.overrides.values()):
        from omlx_server.wiring.overrides.templates import check_templates

        check_templates(settings)
