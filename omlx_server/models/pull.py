"""`pull`: a model by its name, fetched and checked, whether or not it is here already.

Runs in whichever thread calls it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx_server.errors import FetchFailed, ModelUnavailable
from omlx_server.models import catalogue
from omlx_server.models.bundled import embedded, starter
from omlx_server.models.bundled.embedded import MINILM
from omlx_server.models.damage import damage_in
from omlx_server.models.hub.download import download
from omlx_server.models.hub.hub import HUB, Hub, NoNetwork
from omlx_server.models.locate import (
    REPO_ID,
    Located,
    downloads_into,
    find_installed,
    installed,
    located,
)
from omlx_server.models.locate import unknown as unknown_model
from omlx_server.models.progress import Progress

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Variant:
    """How the starter model is kept: `name` says what `finish` does to the converted one."""

    name: str = "f32"
    finish: starter.Finish | None = None


@dataclass(frozen=True, slots=True)
class Pulled:
    """`fetched_bytes`: 0 when all was here. Not `is_checked`: it was here, but no network was."""

    model: Located
    fetched_bytes: int
    is_checked: bool = True


def pull(
    name: str,
    dirs: Sequence[Path],
    use_hf_cache: bool,
    progress: Progress,
    hub: Hub = HUB,
    variant: Variant = Variant(),
) -> Located:
    """See `pulled`."""
    return pulled(name, dirs, use_hf_cache, progress, hub, variant).model


def pulled(
    name: str,
    dirs: Sequence[Path],
    use_hf_cache: bool,
    progress: Progress,
    hub: Hub = HUB,
    variant: Variant = Variant(),
) -> Pulled:
    """Fetches a catalogue name or org/name, and checks what was here before.

    Raises:
        ModelUnavailable: there is no such model, it can't be served, or it can't be fetched; or
            what is here came from no hub, and is damaged.
    """
    row = catalogue.find(name)
    if row is not None:
        into = _own_directory(dirs)
        path = starter.ensure(
            row, into, variant=variant.name, finish=variant.finish, progress=progress
        )
        return Pulled(Located(path, (row.name, row.full_name)), 0)
    if name in (MINILM.name, MINILM.full_name):
        path = embedded.ensure(MINILM, _own_directory(dirs), progress=progress)
        return Pulled(Located(path, (MINILM.full_name, MINILM.name)), 0)
    if not REPO_ID.fullmatch(name):
        found = find_installed(name, dirs, use_hf_cache, hub=hub)
        if found is None:
            raise unknown_model(name, dirs, use_hf_cache, hub)
        name = found.names[0]
        if not REPO_ID.fullmatch(name):
            return Pulled(_undamaged(found), 0)
    return _from_hub(name, dirs, use_hf_cache, progress, hub)


def _undamaged(model: Located) -> Located:
    """One that came from no hub that could tell what its bytes have to be, nor give them again."""
    if problem := damage_in(model.path):
        raise FetchFailed(
            f"{model.names[0]} in {model.path} is damaged: {problem}",
            hint="It came from no hub, so it can't be repaired here: copy it again from where it "
            f"was, or remove it (`omlx-server rm {model.names[0]}`).",
        )
    return model


def _from_hub(
    name: str, dirs: Sequence[Path], use_hf_cache: bool, progress: Progress, hub: Hub
) -> Pulled:
    here = _found(name, dirs, use_hf_cache, hub)
    try:
        done = download(hub, name, _where(name, here, dirs, use_hf_cache), progress)
    except NoNetwork as error:
        if here is not None:
            return Pulled(here, 0, is_checked=False)
        raise NoNetwork(error.message, hint=_offline_hint(dirs, use_hf_cache, hub)) from error
    return Pulled(located(done.path, name), done.fetched_bytes)


def _found(name: str, dirs: Sequence[Path], use_hf_cache: bool, hub: Hub) -> Located | None:
    try:
        return find_installed(name, dirs, use_hf_cache, hub=hub)
    except ModelUnavailable:
        return None  # what is there of it is not whole


def _where(
    name: str, here: Located | None, dirs: Sequence[Path], use_hf_cache: bool
) -> Path | None:
    """The directory that has the model already, else where new ones go; None is the cache."""
    for root in dirs:
        if here is not None and here.path == root.expanduser() / name:
            return root.expanduser()
    return downloads_into(dirs, use_hf_cache)


def _own_directory(dirs: Sequence[Path]) -> Path:
    into = downloads_into(dirs, use_hf_cache=False)
    assert into is not None
    return into


def _offline_hint(dirs: Sequence[Path], use_hf_cache: bool, hub: Hub) -> str:
    names = [model.names[0] for model in installed(dirs, use_hf_cache, hub=hub)]
    if not names:
        return "Check the network. No model is here yet."
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"Check the network. These models are here already: {', '.join(names[:_SHOWN])}{rest}."
