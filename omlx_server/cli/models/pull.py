"""`omlx-server pull`: downloads a model, with progress on stderr and the result on stdout."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.filesize import decimal

from omlx_server.cli.models.fit import fit_here, fit_in_words
from omlx_server.cli.shell import output
from omlx_server.cli.shell.options import load_settings, memory_limit
from omlx_server.cli.shell.progress import open_display
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.errors import ModelUnavailable, OmlxError
from omlx_server.models import catalogue
from omlx_server.models.hub.names import HubName, hub_name
from omlx_server.models.kind import kind_in
from omlx_server.models.locate import Located, find_installed
from omlx_server.models.offers.offers import offer_of
from omlx_server.models.progress import ProgressListener
from omlx_server.models.pull import Pulled, pull_or_make
from omlx_server.models.remove import disk_bytes
from omlx_server.settings import Settings

_INTERRUPTED = 130


def run(*, name: str, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    settings = load_settings(config, sets).settings
    model = settings.models.resolve_alias(name)
    repository = hub_name(model)
    if repository is not None and model not in catalogue.NAMES:
        _announce(name, repository, settings)
    try:
        with open_display() as display:
            result = _pull_or_make(model, settings, display)
    except KeyboardInterrupt:
        error = OmlxError("interrupted", hint="what has come is kept: run it again to go on")
        output.report_error(error, as_json=as_json)
        return _INTERRUPTED
    shape = _result_json(result, memory_limit(settings))
    print(json.dumps(shape) if as_json else _result_sentence(result))
    return 0


def _announce(name: str, repository: HubName, settings: Settings) -> None:
    """Say which model it is, its size, and whether it fits; the latter two of one to download."""
    if str(repository) != name:
        output.say(f"{name}: {repository}")
    limit = memory_limit(settings)
    with suppress(ModelUnavailable):  # the download itself tells what is wrong
        if find_installed(str(repository), settings.models) is None:
            nbytes, fit = offer_of(repository, limit)
            output.say(f"{repository}: {decimal(nbytes)}, {fit_in_words(fit, limit)}")


def _pull_or_make(name: str, settings: Settings, display: ProgressListener) -> Pulled:
    def make(progress: ProgressListener) -> Located:
        from omlx_server.wiring.model_directory import find_model

        return find_model(name, settings, progress)

    return pull_or_make(name, settings.models, display, make)


def _result_sentence(result: Pulled) -> str:
    name, path = result.model.names[0], result.model.path
    if not result.is_checked:
        return f"{name} is here: {path} (not checked: there is no network)"
    if result.fetched_bytes:
        return f"{name} is here: {path} ({decimal(result.fetched_bytes)} fetched and checked)"
    return f"{name} is here: {path}"


def _result_json(result: Pulled, limit: int) -> dict[str, object]:
    chats = kind_in(result.model.path, result.model.names[0]) is ModelKind.CHAT
    return {
        "name": result.model.names[0],
        "names": list(result.model.names),
        "path": str(result.model.path),
        "fetched_bytes": result.fetched_bytes,
        "disk_bytes": disk_bytes(result.model.path),
        "checked": result.is_checked,
        "fit": fit_here(result.model, limit).value if chats else None,
    }
