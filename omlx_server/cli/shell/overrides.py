"""Checks `models.overrides` for commands, with no more imports than they need."""

from omlx_server.settings import Settings
from omlx_server.wiring.overrides.names import check_overrides


def check_all(settings: Settings) -> None:
    """Check all overrides. Raises ConfigError for what `serve` would refuse."""
    check_overrides(settings)
    check_files(settings)


def check_files(settings: Settings) -> None:
    """Check the files of chat templates; jinja is imported only if there are any. Raises
    ConfigError."""
    if any(own.chat_template for own in settings.models.overrides.values()):
        from omlx_server.wiring.overrides.templates import check_templates

        check_templates(settings)
