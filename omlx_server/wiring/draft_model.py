"""The draft model of a model: which one it is, and whether it reads text as that model does."""

import logging

from omlx_server.core.speculation.methods import Method, methods_of
from omlx_server.errors import ModelUnavailable
from omlx_server.models.layout import weight_bytes
from omlx_server.models.locate import Located, find_here, locate
from omlx_server.settings import Settings
from omlx_server.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
# Between letters, digits, signs and spaces of several scripts vocabularies of one size differ.
_SAMPLES = (
    "The quick brown fox jumps over the lazy dog, 3.14159 times in 2024!\n",
    "def area(r):\n    return {'pi': 3.14, \"r\": r ** 2}  # tab:\t<|x|>\n",
    "Zwölf Boxkämpfer jagen Viktor; el pingüino, où ça? Привет, мир — 你好，世界 🙂",
)


def draft_model_of(located: Located, settings: Settings) -> Located | None:
    """The draft model that the settings name for a model, downloaded first if need be; None where
    they name none, or the mode has no use for it.

    Raises:
        ModelUnavailable: it is not there, or is the model itself.
    """
    name = draft_model_name(located, settings)
    if not name:
        return None
    found = locate(settings.models.resolve_alias(name), settings.models)
    if found.path == located.path:
        raise ModelUnavailable(
            f"the draft model of {located.names[0]} is this model itself",
            hint="speculation.draft_model names a smaller model with the same vocabulary",
        )
    return found


def draft_model_for(
    located: Located, tokenizer: Tokenizer, settings: Settings, *, strict: bool
) -> Located | None:
    """As `draft_model_of`, if it has the vocabulary of the model. The settings may name one for all
    models: those that it does not fit do without, and a warning is logged, unless `strict`, or it
    is named for this model.

    Raises:
        ModelUnavailable: it is not there, is the model itself, or has another vocabulary.
    """
    own = settings.overrides_of(located.names).speculation.draft_model
    try:
        found = draft_model_of(located, settings)
        if found is not None:
            check_vocabulary(tokenizer, Tokenizer.load(found.path), found.names[0])
    except ModelUnavailable as error:
        if strict or own is not None:
            raise
        _log.warning("%s has no draft model: %s", located.names[0], error.message)
        return None
    return found


def draft_model_bytes(located: Located, settings: Settings) -> int:
    """Bytes of the weights of a model's draft model; 0 where there is none, or not yet, or not
    whole."""
    name = settings.models.resolve_alias(draft_model_name(located, settings))
    if not name:
        return 0
    try:
        found = find_here(name, settings.models)
    except ModelUnavailable:
        return 0
    return 0 if found is None or found.path == located.path else weight_bytes(found.path)


def check_vocabulary(own: Tokenizer, other: Tokenizer, name: str) -> None:
    """Check that a draft model with this `name` has the same token ids for the same text.

    Raises:
        ModelUnavailable: it has not.
    """
    shared = own.vocabulary & other.vocabulary
    token = next((t for t in sorted(shared) if own.token_id(t) != other.token_id(t)), None)
    if token is not None:
        ids = f"{own.token_id(token)} here, {other.token_id(token)} there"
        raise _refused(name, f"the token {token!r} has the id {ids}")
    text = next((s for s in _SAMPLES if own.encode(s) != other.encode(s)), None)
    if text is not None:
        raise _refused(name, f"it reads {text[:20]!r} as other tokens")


def draft_model_name(located: Located, settings: Settings) -> str:
    """By which name the settings call the draft model of a model; empty where they name none, or
    the mode has no use for it."""
    own = settings.speculation_of(located.names)
    return own.draft_model if Method.DRAFT in methods_of(own.mode) else ""


def _refused(name: str, reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"the draft model {name} has another vocabulary: {reason}",
        hint="choose a smaller model of the same family, or leave speculation.draft_model empty",
    )
