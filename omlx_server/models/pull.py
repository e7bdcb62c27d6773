"""Fetches a model by its name, and checks one that is here already."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from omlx_server.errors import FetchFailed, ModelUnavailable
from omlx_server.models import layout
from omlx_server.models.bundled import embedded
from omlx_server.models.catalogue import MINILM, NAMES, find
from omlx_server.models.damage import damage_in
from omlx_server.models.hub.download import download, is_half_updated
from omlx_server.models.hub.hub import HubSilent, NoNetwork
from omlx_server.models.hub.names import HubName, hub_name
from omlx_server.models.locate import (
    Located,
    Places,
    bundled_directory,
    downloaded,
    find_in_dirs,
    find_installed,
    installed,
    locate,
    where_new,
)
from omlx_server.models.locate import unknown as unknown_model
from omlx_server.models.progress import ProgressListener

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Pulled:
    """`fetched_bytes` came in this call. `is_checked` is false if the hub was silent."""

    model: Located
    fetched_bytes: int
    is_checked: bool = True


def pull(name: str, places: Places, progress: ProgressListener) -> Pulled:
    """Fetch or check a model of the hub, or the embedding model. Raises ModelUnavailable."""
    if bundled := _bundled(name, places, progress):
        return Pulled(bundled, 0)
    wanted = hub_name(name)
    model = find_in_dirs(name, places) if wanted is None or "/" not in name else None
    if model is not None:
        wanted = _name_at_hub(model)
        if wanted is None:
            return Pulled(_undamaged(model), 0)
    if wanted is None:
        raise unknown_model(name, places)
    return _from_hub(wanted, places, progress)


def pull_or_make(
    name: str,
    places: Places,
    progress: ProgressListener,
    make: Callable[[ProgressListener], Located],
) -> Pulled:
    """Fetch as `pull`, or the starter by `make`, which knows this device's form."""
    wheel = _Wheel(progress)
    if find(name) is not None:
        return Pulled(make(wheel), wheel.nbytes)
    done = pull(name, places, wheel)
    return replace(done, fetched_bytes=wheel.nbytes) if name in NAMES else done


class _Wheel:
    def __init__(self, progress: ProgressListener) -> None:
        self.nbytes = 0
        self._progress = progress

    def update(self, stage: str, done: int, total: int) -> None:
        if stage == "download":
            self.nbytes = total
        self._progress.update(stage, done, total)


def _bundled(name: str, places: Places, progress: ProgressListener) -> Located | None:
    if name not in (MINILM.name, MINILM.full_name):
        return None
    is_complete = partial(embedded.is_complete, MINILM)
    directory = bundled_directory(MINILM.full_name, is_complete, places)
    path = embedded.ensure(MINILM, directory.parent, progress=progress)
    return Located(path, (MINILM.full_name, MINILM.name))


def encoder(name: str, places: Places, progress: ProgressListener) -> Located:
    """Return an encoder of the catalogue or any other. Raises as `locate`."""
    return _bundled(name, places, progress) or locate(name, places, progress)


def _undamaged(model: Located) -> Located:
    layout.check(model.path)
    if problem := damage_in(model.path):
        raise FetchFailed(
            f"{model.names[0]} in {model.path} is damaged: {problem}",
            hint="It came from no hub, so it can't be repaired here: copy it again from where it "
            f"was, or remove it (`omlx-server rm {model.names[0]}`).",
        )
    return model


def _from_hub(wanted: HubName, places: Places, progress: ProgressListener) -> Pulled:
    name = str(wanted)
    into = _where(wanted, places)
    try:
        done = download(wanted.repo_id, into, progress, revision=wanted.revision, tag=wanted.tag)
    except NoNetwork as error:
        if isinstance(error, HubSilent):
            with suppress(ModelUnavailable):  # it is here, but incomplete
                if (model := find_installed(name, places)) is not None:
                    return Pulled(model, 0, is_checked=False)
        raise NoNetwork(error.message, hint=_offline_hint(places)) from error
    return Pulled(downloaded(done, places), done.fetched_bytes)


def _name_at_hub(model: Located) -> HubName | None:
    is_gguf = bool(layout.gguf_files(model.path))
    names = (hub_name(name) for name in model.names if "/" in name)
    return next((name for name in names if name and bool(name.tag) == is_gguf), None)


def _where(wanted: HubName, places: Places) -> Path | None:
    for root in (root.expanduser() for root in places.dirs):
        directory = root / wanted.repository
        has_config = (directory / "config.json").is_file()
        if has_config or any(directory.rglob("*.gguf")) or is_half_updated(str(wanted), root):
            return root
    return where_new(wanted, places)


def _offline_hint(places: Places) -> str:
    names = [model.names[0] for model in installed(places)]
    if not names:
        return "Check the network. No model is here yet."
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"Check the network. These models are here already: {', '.join(names[:_SHOWN])}{more}."
