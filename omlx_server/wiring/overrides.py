"""What single models have otherwise than others, where it meets what the model itself says."""

import logging

from omlx_server.api.models.served import SamplingDefaults
from omlx_server.models.description import Recommended
from omlx_server.settings import Settings
from omlx_server.settings.sections import ModelOverrides

_log = logging.getLogger(__name__)


def context_length(model: str, trained: int, own: ModelOverrides) -> int:
    """A model's context, in tokens. More than it was trained for it can't use."""
    if own.context_length is not None and own.context_length > trained:
        _log.warning("context_length of %s stays %d: it was trained for no more", model, trained)
    return min(trained, own.context_length or trained)


def sampling_defaults(
    recommended: Recommended, own: ModelOverrides, settings: Settings
) -> SamplingDefaults:
    """What counts for a field that a request leaves out: the override, else what the makers
    recommend if that is wanted, else the API's own default."""
    api = SamplingDefaults(max_tokens=settings.sampling.max_tokens)
    makers = recommended if settings.sampling.source == "model" else Recommended()
    first = own.sampling
    return SamplingDefaults(
        temperature=_first(first.temperature, makers.temperature, api.temperature),
        top_p=_first(first.top_p, makers.top_p, api.top_p),
        top_k=int(_first(first.top_k, makers.top_k, api.top_k)),
        min_p=_first(first.min_p, makers.min_p, api.min_p),
        repetition_penalty=_first(
            first.repetition_penalty, makers.repetition_penalty, api.repetition_penalty
        ),
        max_tokens=int(_first(first.max_tokens, None, api.max_tokens)),
    )


def _first(own: float | None, makers: float | None, default: float) -> float:
    if own is not None:
        return own
    return default if makers is None else makers
