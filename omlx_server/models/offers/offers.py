"""Models that can be downloaded, with what people choose by. Blocking; any thread."""

from collections.abc import Iterable, Mapping

from typing_extensions import TypedDict

from omlx_server.core.memory.fit import Fit, fit_of
from omlx_server.core.model_files.kv_size import token_bytes
from omlx_server.errors import FetchFailed
from omlx_server.models import layout
from omlx_server.models.catalogue import MINILM, STARTER, has_gpu
from omlx_server.models.hub import hub
from omlx_server.models.hub.names import (
    SHORT_NAMES,
    HubName,
    ShortName,
    best_that_fits,
    matching,
)
from omlx_server.models.locate import Located, Places, installed
from omlx_server.models.offers.search import HubModel, search

_MOST_HITS = 20


class ModelOffer(TypedDict):
    """A model that `pull` takes by its `name`. `bytes` of weights, on disk and in memory; those of
    short names are approximate. `abilities`: tools, thinking, images, embeddings. `fit`: fits (with
    32k tokens of context), tight, too large, by the server's memory limit; a guess where only the
    size is known. `best`: the one to begin with. `problem`: why it can't be served. Null:
    unknown."""

    name: str
    model: str
    bytes: int | None
    download_bytes: int | None
    context_length: int | None
    abilities: list[str]
    fit: str | None
    best: bool
    downloads: int | None
    here: bool
    gated: bool
    problem: str | None


def find_offers(
    text: str, places: Places, limit: int
) -> tuple[list[ModelOffer], FetchFailed | None]:
    """Return the models that have a short name; with a text those that match, with the hub's, or
    why the hub tells nothing. Without a text it uses no network."""
    models = installed(places)
    names = {name for model in models for name in model.names}
    catalogue = [
        offer
        for offer in _catalogue_offers(models, names, limit)
        if text.lower() in f"{offer['name']} {offer['model']}".lower()
    ]
    offers = [*catalogue, *(_short_name_offer(row, names, limit) for row in matching(text))]
    if not text:
        return offers, None
    try:
        hits = {hit.name: hit for hit in search(text, _MOST_HITS)}
    except FetchFailed as error:
        return offers, error
    listed = {offer["model"] for offer in offers}
    offers += [_offer(name, name, here=name in names) for name in hits if name not in listed]
    return [_with_hub_facts(offer, hits, limit) for offer in offers], None


def offer_of(wanted: HubName, limit: int) -> tuple[int, Fit]:
    """Ask the hub for the bytes of a model, and tell whether it fits. Raises ModelUnavailable."""
    remote = hub.HUB.look(wanted.repo_id, wanted.revision, wanted.tag)
    remote.check_files()
    nbytes = sum(file.nbytes for file in remote.large)
    if remote.tag:
        return nbytes, fit_of(nbytes, None, limit)
    row = next((row for row in SHORT_NAMES if row.repo_id == wanted.repo_id), None)
    if row is not None:
        return nbytes, fit_of(nbytes, row.token_bytes, limit, row.context)
    with hub.explained(wanted.repo_id):
        config = hub.ask(hub.HUB.url(remote, "config.json")).json()
    of_token = token_bytes(config) if isinstance(config, dict) else None
    return nbytes, fit_of(nbytes, of_token, limit)


def _offer(name: str, model: str, *, here: bool) -> ModelOffer:
    return {
        "name": name,
        "model": model,
        "bytes": None,
        "download_bytes": None,
        "context_length": None,
        "abilities": [],
        "fit": None,
        "best": False,
        "downloads": None,
        "here": here,
        "gated": False,
        "problem": None,
    }


def _catalogue_offers(
    models: Iterable[Located], local_names: set[str], limit: int
) -> Iterable[ModelOffer]:
    minilm = MINILM.files["model.safetensors"]
    for row, size, download in (
        (STARTER, _starter_bytes(models), STARTER.source.wheel_bytes),
        (MINILM, minilm.member_bytes, minilm.wheel_bytes),
    ):
        yield {
            **_offer(row.name, row.full_name, here=row.name in local_names),
            "bytes": size,
            "download_bytes": download,
            "context_length": row.context,
            "abilities": ["embeddings"] if row is MINILM else [],
            "fit": fit_of(size, 0, limit).value,
        }


def _short_name_offer(row: ShortName, local_names: set[str], limit: int) -> ModelOffer:
    return {
        **_offer(row.name, row.repo_id, here=row.repo_id in local_names),
        "bytes": row.disk_bytes,
        "download_bytes": row.disk_bytes,
        "context_length": row.context,
        "abilities": list(row.abilities),
        "fit": row.fit(limit).value,
        "best": row is best_that_fits(limit),
    }


def _with_hub_facts(offer: ModelOffer, hits: Mapping[str, HubModel], limit: int) -> ModelOffer:
    hit = hits.get(offer["model"])
    if hit is None:
        return offer
    nbytes = hit.weight_bytes or offer["bytes"]
    fit = offer["fit"]
    if fit is None and nbytes and not hit.problem:
        fit = fit_of(nbytes, None if hit.chats else 0, limit).value
    return {
        **offer,
        "bytes": nbytes,
        "download_bytes": nbytes,
        "abilities": offer["abilities"] or list(hit.abilities),
        "fit": fit,
        "downloads": hit.downloads,
        "gated": hit.is_gated,
        "problem": hit.problem or None,
    }


def _starter_bytes(models: Iterable[Located]) -> int:
    path = next((model.path for model in models if STARTER.name in model.names), None)
    if path is not None:
        return layout.weight_bytes(path)
    return STARTER.weight_bytes["8bit" if has_gpu() else "f32"]
