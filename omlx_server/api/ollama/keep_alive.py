"""How long a model stays (`keep_alive`), and what a name with Ollama's tag stands for. Event loop's
thread."""

import math
import re

from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.api.ollama.request import KeepAlive
from omlx_server.errors import BadRequest

_LATEST = ":latest"
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(rf"([+-]?)((?:{_PART})+)")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?")


def served_name(models: ServedModels, name: str) -> str:
    """The name by which this server knows a model: `name:latest` is `name`, unless a model is
    called `name:latest` itself. Any other name is returned as it is."""
    if not name.endswith(_LATEST):
        return name
    known = {*models.catalogue.aliases, *(own for one in models.known() for own in one.names)}
    return name if name in known else name.removesuffix(_LATEST)


async def known_as(models: ServedModels, name: str) -> ModelListing:
    """The listing of a model, whichever of its adapters the name asks for. Raises ModelNotFound,
    and AdapterNotFound where the model has no such adapter."""
    known, _ = await models.named(served_name(models, name))
    return known


def seconds_of(keep_alive: KeepAlive | None) -> float | None:
    """For how many seconds a model is to stay; infinity for any time, None where the request does
    not say. Raises BadRequest for a text that is no duration of Go's form."""
    if keep_alive is None:
        return None
    seconds = _parsed(keep_alive) if isinstance(keep_alive, str) else keep_alive
    return math.inf if seconds < 0 else seconds


def _parsed(text: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    found = _DURATION.fullmatch(text)
    if found is None:
        raise BadRequest(
            'keep_alive must be seconds, or a duration such as "5m" or "1h30m"', param="keep_alive"
        )
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, found[2]))
    return -seconds if found[1] == "-" else seconds
