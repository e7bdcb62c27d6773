"""What single models have otherwise than others: names that are checked before anything is loaded,
and values that meet what the model itself says."""

import difflib
import logging
from collections.abc import Collection, Iterator

from omlx_server.api.served import SamplingDefaults
from omlx_server.errors import ConfigError
from omlx_server.models.description import Recommended
from omlx_server.settings import Settings
from omlx_server.settings.sections import ModelOverrides
from omlx_server.text.dialect import REASONING_PARSERS, TOOL_PARSERS
from omlx_server.text.template import ALLOWED_KWARGS

_log = logging.getLogger(__name__)


def check_overrides(settings: Settings) -> None:
    """Here, not where settings are read: the names are known to what is slow to import.

    Raises:
        ConfigError: an override names a parser or a variable that there is not.
    """
    for name, own in settings.models.overrides.items():
        for key, given, known in _names(own):
            if given not in known:
                raise ConfigError(
                    f'models.overrides: {key} of "{name}" can\'t be {given}',
                    hint=_hint(given, known),
                )


def _hint(given: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}It can be {', '.join(sorted(known))}"


def _names(own: ModelOverrides) -> Iterator[tuple[str, str, Collection[str]]]:
    """Key, what is named, and what can be."""
    if own.tool_parser:
        yield "tool_parser", own.tool_parser, TOOL_PARSERS
    if own.reasoning_parser:
        yield "reasoning_parser", own.reasoning_parser, REASONING_PARSERS
    for variable in own.chat_template_kwargs:
        yield "a name in chat_template_kwargs", variable, ALLOWED_KWARGS


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
