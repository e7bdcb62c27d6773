"""The commands, options and help texts of `omlx-server service`."""

from pathlib import Path
from typing import Annotated

from omlx_server.cli.shell.command import Commands, JsonOption, flag, option

_HELP = """Serve in the background: from login on, or from boot on (--system).

\b
Examples:
  omlx-server service install --dry-run
  omlx-server service status
"""
service = Commands(no_args_is_help=True, help=_HELP)
ConfigOption = Annotated[Path | None, option("FILE", "The config file of the service.", "--config")]
SystemOption = Annotated[bool, flag("The service that starts at boot.", "--system")]
DryRunOption = Annotated[bool, flag("Print what would be done, and do nothing.", "--dry-run")]


@service.command("install")
def service_install(
    config_file: ConfigOption = None,
    system: Annotated[bool, flag("Start at boot, before a login. Needs root.", "--system")] = False,
    user: Annotated[
        str, option("NAME", "With --system: run as this user, not as one of its own.", "--user")
    ] = "",
    dry_run: DryRunOption = False,
) -> int:
    """Start it now and at each login, or at each boot.

    \b
    Examples:
      omlx-server service install --dry-run
      omlx-server service install
      omlx-server service install --config ~/omlx.toml
      omlx-server service install --system --dry-run

    \b
    The settings come from the config file alone, which is checked first. Of this shell's
    environment it takes along where Hugging Face's files are, proxies and certificates, but no
    token and no password. Install again after you have changed directories or one of these, or have
    moved or upgraded the program: one that runs is replaced.
    """
    from omlx_server.cli.service.service import install

    return install(config=config_file, dry_run=dry_run, system=system, user=user)


@service.command("uninstall")
def service_uninstall(
    system: SystemOption = False,
    purge: Annotated[
        bool, flag("Also remove its own user, with config, log, models and blocks.", "--purge")
    ] = False,
    dry_run: DryRunOption = False,
) -> int:
    """Stop it and remove it. The config, the log, models and stored blocks stay.

    \b
    Example:
      omlx-server service uninstall
    """
    from omlx_server.cli.service.service import uninstall

    return uninstall(dry_run=dry_run, system=system, purge=purge)


@service.command("start")
def service_start(system: SystemOption = False, dry_run: DryRunOption = False) -> int:
    """Start the installed service.

    \b
    Example:
      omlx-server service start && omlx-server service logs -f
    """
    from omlx_server.cli.service.service import control

    words = "Starting: `omlx-server service status` tells how it is."
    return control("start", words, system=system, dry_run=dry_run)


@service.command("stop")
def service_stop(system: SystemOption = False, dry_run: DryRunOption = False) -> int:
    """Stop it until the next login or `service start`. Running answers finish first.

    \b
    Example:
      omlx-server service stop
    """
    from omlx_server.cli.service.service import control

    words = "Stopped."
    return control("stop", words, system=system, dry_run=dry_run)


@service.command("reload")
def service_reload(system: SystemOption = False, dry_run: DryRunOption = False) -> int:
    """Have it look at its config now, without a restart. It does so when the file changes, too.

    \b
    Example:
      omlx-server service reload && omlx-server service logs -n 5
    """
    from omlx_server.cli.service.service import control

    words = "Asked to look at its config: `omlx-server service logs` tells what became of it."
    return control("reload", words, system=system, dry_run=dry_run)


@service.command("status")
def service_status(system: SystemOption = False, as_json: JsonOption = False) -> int:
    """Say how it is; exit code 0 if it runs, 1 if not.

    \b
    Examples:
      omlx-server service status
      omlx-server service status --json
    """
    from omlx_server.cli.service.service import status

    return status(as_json=as_json, system=system)


@service.command("logs")
def service_logs(
    follow: Annotated[bool, flag("Go on until Ctrl-C.", "--follow", "-f")] = False,
    lines: Annotated[
        int, option("N", "How many to begin with.", "--lines", "-n", min=0, max=1_000_000)
    ] = 50,
    config_file: ConfigOption = None,
    system: SystemOption = False,
) -> int:
    """Print the end of its log.

    \b
    Examples:
      omlx-server service logs -n 200
      omlx-server service logs -f
    """
    from omlx_server.cli.service.service import logs

    return logs(follow=follow, lines=lines, config=config_file, system=system)
