"""`omlx-server pull`: a model onto the disk, with progress on stderr and the result on stdout."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal

from omlx_server.cli import lazy, output
from omlx_server.cli.options import load_settings
from omlx_server.cli.progress import open_display
from omlx_server.models import catalogue
from omlx_server.models.progress import Progress
from omlx_server.models.pull import Pulled, pulled
from omlx_server.models.remove import size_of
from omlx_server.settings import Settings

_INTERRUPTED = 130


def run(*, name: str, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    settings = load_settings(config, sets).settings
    wanted = settings.models.aliases.get(name, name)
    try:
        with open_display() as display:
            done = _pull(wanted, settings, display)
    except KeyboardInterrupt:
        output.show_error("interrupted", "what has come is kept: run it again to go on")
        return _INTERRUPTED
    print(json.dumps(_document(done)) if as_json else _sentence(done))
    return 0


def _pull(name: str, settings: Settings, display: Progress) -> Pulled:
    models = settings.models
    if catalogue.find(name) is None:
        return pulled(name, models.dirs, models.use_hf_cache, display)
    # How it is kept depends on the device, which only the server's own parts know.
    found = lazy.load("build.models").find_model(name, settings, display)
    return Pulled(found, 0)


def _sentence(done: Pulled) -> str:
    name, path = done.model.names[0], done.model.path
    if not done.is_checked:
        return f"{name} is here: {path} (not checked: there is no network)"
    if done.fetched_bytes:
        return f"{name} is here: {path} ({decimal(done.fetched_bytes)} fetched and checked)"
    return f"{name} is here: {path}"


def _document(done: Pulled) -> dict[str, object]:
    return {
        "name": done.model.names[0],
        "names": list(done.model.names),
        "path": str(done.model.path),
        "fetched_bytes": done.fetched_bytes,
        "disk_bytes": size_of(done.model.path),
        "checked": done.is_checked,
    }
