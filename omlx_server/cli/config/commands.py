"""The commands, options and help texts of `omlx-server config`."""

from typing import Annotated

import typer

from omlx_server.cli.shell.command import Commands, ConfigOption, SetOption, flag
from omlx_server.cli.shell.complete import (
    complete_keys,
    complete_keys_of_file,
    complete_sections,
    complete_values,
)
from omlx_server.cli.shell.output import say, show_json

_HELP = """Show, check and change the settings.

\b
Examples:
  omlx-server config show --origin
  omlx-server config set server.port 9000
"""
config = Commands(no_args_is_help=True, help=_HELP)

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", autocompletion=complete_keys, help="As SECTION.KEY.")
]
KeyOrSectionArgument = Annotated[
    str,
    typer.Argument(
        metavar="KEY", autocompletion=complete_sections, help="As SECTION.KEY, or a SECTION."
    ),
]


@config.command("show")
def config_show(
    origin: Annotated[bool, flag("Say where each value is from.", "--origin")] = False,
    explain: Annotated[bool, flag("Say above each value what it does.", "--explain")] = False,
    as_json: Annotated[bool, flag("Values and origins as JSON.", "--json")] = False,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Print the settings in force, as a config file would say them. Keys of users stay hidden.

    \b
    Examples:
      omlx-server config show --origin
      omlx-server config show --explain
      OMLX_SERVER__PORT=9000 omlx-server config show --json
    """
    from omlx_server.cli.config.show import show

    return show(
        origin=origin, explain=explain, as_json=as_json, config=config_file, sets=sets or []
    )


@config.command("get")
def config_get(
    key: KeyOrSectionArgument,
    as_json: Annotated[bool, flag("The value as JSON.", "--json")] = False,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Print one setting, or a section of them, as it is in force.

    \b
    Examples:
      omlx-server config get server.port
      omlx-server config get server
      omlx-server config get models.overrides.org/name.ttl
    """
    from omlx_server.cli.config.show import get

    return get(key=key, as_json=as_json, config=config_file, sets=sets or [])


@config.command("set", context_settings={"ignore_unknown_options": True})
def config_set(
    key: KeyArgument,
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE",
            autocompletion=complete_values,
            help="As a flag would give it; - reads it from stdin.",
        ),
    ],
    config_file: ConfigOption = None,
) -> int:
    """Write one setting to the config file. Its comments and all other keys stay.

    \b
    Examples:
      omlx-server config set server.port 9000
      omlx-server config set cache.cold_cache_max_bytes 50GB
      omlx-server config set models.dirs "~/models,/mnt/models"
      omlx-server config set models.overrides.org/name.sampling.top_p 0.9
      omlx-server config set auth.api_keys - < keys.txt

    \b
    Without a config file it makes ~/.config/omlx_server/config.toml. A value that would make the
    file invalid is refused, and the file stays as it is. A file with keys of clients is made
    readable by its owner only.
    """
    from omlx_server.cli.config.change import set_value

    return set_value(key=key, value=value, config=config_file)


@config.command("unset")
def config_unset(
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", autocompletion=complete_keys_of_file, help="As SECTION.KEY."),
    ],
    config_file: ConfigOption = None,
) -> int:
    """Remove one setting from the config file. Says what is in force then.

    \b
    Examples:
      omlx-server config unset server.port
      omlx-server config unset models.overrides.org/name.sampling.top_p
      omlx-server config unset models.overrides.org/name

    All other keys and their comments stay. Exit code 1 where the file does not set the key; one
    without which the file would be invalid stays in it.
    """
    from omlx_server.cli.config.change import unset

    return unset(key=key, config=config_file)


@config.command("edit")
def config_edit(config_file: ConfigOption = None) -> int:
    """Open the config file in your editor. It is written only when it is valid.

    \b
    Example:
      EDITOR=vim omlx-server config edit
    """
    from omlx_server.cli.config.change import run

    return run(config=config_file)


@config.command("validate")
def config_validate(config_file: ConfigOption = None) -> int:
    """Say whether the config file and the environment are valid. If not, the exit code is 2.

    \b
    Example:
      omlx-server config validate --config ./omlx.toml

    It also warns of what is allowed and means nothing.
    """
    from omlx_server.cli.config.show import validate

    return validate(config=config_file)


@config.command("schema")
def config_schema() -> int:
    """Print the JSON schema of the config file. Editors that check TOML take it.

    \b
    Example:
      omlx-server config schema > omlx.schema.json
    """
    from omlx_server.settings.json_schema import json_schema

    show_json(json_schema())
    return 0


@config.command("path")
def config_path(config_file: ConfigOption = None) -> int:
    """Print the path of the config file in use. Without one the exit code is 1.

    \b
    Example:
      $EDITOR "$(omlx-server config path)"
    """
    from omlx_server import settings
    from omlx_server.settings.layers import search_path

    file = settings.find_config(config_file)
    if file:
        print(file.absolute())
        return 0
    places = ", ".join(str(place) for place in search_path())
    say(f"no config file: defaults apply. Looked for {places}")
    return 1
