"""Finds, fetches and removes models for a running server."""

import os
import threading
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

from omlx_server.api.models.listing import (
    MOST_AT_ONCE,
    Kind,
    ModelFetched,
    ModelOffers,
    ModelResolved,
)
from omlx_server.errors import Conflict, ModelUnavailable
from omlx_server.models import catalogue
from omlx_server.models.hub.names import hub_name
from omlx_server.models.installed import installed_models
from omlx_server.models.locate import Located, find_installed, near_names
from omlx_server.models.offers.offers import find_offers
from omlx_server.models.progress import ProgressListener
from omlx_server.models.pull import pull_or_make
from omlx_server.models.remove import remove
from omlx_server.wiring.known import KnownModels
from omlx_server.wiring.memory import shares_of
from omlx_server.wiring.model_directory import find_model, find_model_here


class DiskFetcher:
    """A ModelFetcher for the current settings' directories and aliases."""

    def __init__(self, models: KnownModels) -> None:
        self._known = models
        self.free = threading.BoundedSemaphore(MOST_AT_ONCE)

    def resolve(self, name: str) -> ModelResolved:
        settings = self._known.settings
        target = settings.models.resolve_alias(name)
        try:
            is_ours = target in catalogue.NAMES
            row = catalogue.find(target)
            here = find_model_here(target, settings) if row else None
            located = here or find_installed(target, settings.models)
            hub = hub_name(target) if located is None and not is_ours else None
            if hub is not None and str(hub) != target:
                target = str(hub)
                located = find_installed(target, settings.models)
        except ModelUnavailable as error:
            alias = target if target != name else None
            return _resolved(name, "directory", alias, problem=error.with_hint)
        alias = target if target != name else None
        below = located is not None and any(
            located.path.is_relative_to(place.expanduser()) for place in settings.models.dirs
        )
        kind: Kind = "directory" if below else "hub" if hub_name(target) else "unknown"
        kind = "catalogue" if is_ours else kind
        is_unknown = located is None and kind == "unknown"
        near = near_names(target, settings.models) if is_unknown else ()
        return _resolved(name, kind, alias, located, suggestions=near)

    def search(self, text: str) -> ModelOffers:
        settings = self._known.settings
        limit = shares_of(settings, cold=False).limit
        offers, error = find_offers(text, settings.models, limit)
        return {"models": offers, "problem": error.message if error else None}

    def remove(self, name: str, in_use: Collection[Path]) -> int:
        models = self._known.settings.models
        model = next((m for m in installed_models(models) if m.names[0] == name), None)
        if model is None:
            raise ModelUnavailable(f"There is no model {name!r} here")
        started_with = [self._known.directory(one.load_request.key) for one in self._known.first()]
        # Real paths: it may be served by another name, through a link.
        place = os.path.realpath(model.path)
        if place in map(os.path.realpath, filter(None, started_with)):
            raise Conflict("the server was started with this model, so it stays")
        if place in map(os.path.realpath, in_use):
            raise Conflict("the model is in use: unload it first")
        return remove(model, models.dirs)

    def fetch(self, name: str, progress: ProgressListener) -> ModelFetched:
        settings = self._known.settings
        wanted = settings.models.resolve_alias(name)
        make = partial(find_model, wanted, settings)
        done = pull_or_make(wanted, settings.models, progress, make)
        return {
            "type": "done",
            "model": done.model.names[0],
            "names": list(done.model.names),
            "path": str(done.model.path),
            "fetched_bytes": done.fetched_bytes,
            "checked": done.is_checked,
        }


def _resolved(
    name: str,
    kind: Kind,
    alias: str | None,
    located: Located | None = None,
    *,
    problem: str | None = None,
    suggestions: Iterable[str] = (),
) -> ModelResolved:
    return {
        "name": name,
        "kind": kind,
        "alias_of": alias,
        "here": located is not None,
        "names": list(located.names) if located else [],
        "path": str(located.path) if located else None,
        "problem": problem,
        "suggestions": list(suggestions),
    }
