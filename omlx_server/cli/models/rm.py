"""`omlx-server rm`: removes a model that no running server has loaded."""

from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal

from omlx_server.cli.models.named import find_installed
from omlx_server.cli.models.server import admin_server_of, answer_of, has_name, is_loaded, models_in
from omlx_server.cli.server_client.http import NoAnswer, ServerClient
from omlx_server.cli.shell import stdin
from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.shell.output import say
from omlx_server.errors import OmlxError, UsageError
from omlx_server.models.adapters.registry import AdapterPlaces
from omlx_server.models.installed import Installed
from omlx_server.models.layout import real_path
from omlx_server.models.remove import disk_bytes, remove
from omlx_server.settings import Settings
from omlx_server.store.inventory import ColdDirectory
from omlx_server.store.mediums.medium import MediumError


def run(
    *, name: str, yes: bool, url: str, api_key: str, config: Path | None, sets: Sequence[str]
) -> int:
    settings = load_settings(config, sets).settings
    model = _find_removable(name, settings)
    if url or settings.server.port or settings.server.uds:
        _refuse_if_loaded(model, admin_server_of(url, api_key, config, sets), url)
    if not yes and not _confirm(model):
        print("Nothing was removed.")
        return 1
    freed_bytes = remove(model, settings.models.dirs)
    print(f"Removed {model.names[0]}; {decimal(freed_bytes)} are free now.")
    if stored_bytes := _stored_bytes(model, settings):
        print(
            f"Of its prompts {decimal(stored_bytes)} are stored in {settings.cache.cold_dir}; "
            "`omlx-server cache trim` drops such first."
        )
    return 0


def _find_removable(name: str, settings: Settings) -> Installed:
    aliases = settings.models.aliases
    if name in aliases:
        raise UsageError(
            f"{name} is another name of {aliases[name]}",
            hint=f"`omlx-server rm {aliases[name]}`, or `omlx-server alias --remove {name}`",
        )
    return find_installed(name, settings)


def _refuse_if_loaded(model: Installed, server: ServerClient, url: str) -> None:
    try:
        items = models_in(answer_of(server.get("/admin/models")))
    except OmlxError as error:
        if url:
            raise
        if not isinstance(error, NoAnswer):
            say(f"warning: {server.url} does not say what is loaded: {error.message}")
        return
    if any(has_name(item, model.names) and is_loaded(item) for item in items):
        url_option = f" --url {url}" if url else ""
        raise UsageError(
            f"the server at {server.url} has {model.names[0]} loaded",
            hint=f"`omlx-server unload {model.names[0]}{url_option}` first",
        )


def _confirm(model: Installed) -> bool:
    size, adapters = decimal(disk_bytes(model.path)), AdapterPlaces(model.path, ()).all()
    path = real_path(model.path)
    with_adapters = f" and its adapters {', '.join(adapters)}" if adapters else ""
    return stdin.confirm_removal(f"{model.names[0]} ({size}){with_adapters} from {path}")


def _stored_bytes(model: Installed, settings: Settings) -> int:
    if not settings.cache.enabled:
        return 0
    try:
        uses = ColdDirectory(settings.cache.cold_dir).uses()
    except MediumError:
        return 0
    return sum(use.nbytes for use in uses if any(use.is_of(name) for name in model.names))
