"""The model on this machine that a name on the command line means."""

from omlx_server.errors import UsageError
from omlx_server.models.hub.hub import HUB
from omlx_server.models.installed import Installed, installed_models
from omlx_server.models.locate import unknown
from omlx_server.settings import Settings
from omlx_server.settings.types import expanded


def named(name: str, settings: Settings) -> Installed:
    """By one of its names, or by its path where two have the same.

    Raises:
        UsageError: none is here that is called so.
    """
    models = settings.models
    found = installed_models(models.dirs, models.use_hf_cache)
    path = expanded(name).absolute()
    by_name = [m for m in found if name in m.names and not m.problem.startswith("hidden by")]
    by_path = [m for m in found if m.path.absolute() == path]
    chosen = by_path or sorted(by_name, key=lambda m: m.names[0] != name)
    if chosen:
        return chosen[0]
    if path.exists() and "/" in name:
        raise UsageError(
            f"{path} is no model of models.dirs or of the Hugging Face cache",
            hint="`omlx-server list --json` says the paths of those that are",
        )
    raise unknown(name, models.dirs, models.use_hf_cache, HUB)
