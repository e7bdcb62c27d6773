"""The draft model of a model, and the check of its vocabulary."""

import logging

from omlx_server.core.speculation.methods import Method, methods_of
from omlx_server.errors import ModelUnavailable
from omlx_server.models.layout import weight_bytes
from omlx_server.models.locate import Located, find_here, locate
from omlx_server.settings import Settings
from omlx_server.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
# Texts of several scripts, which tell vocabularies of the same size apart.
_SAMPLES = (
    "The quick brown fox jumps over the lazy dog, 3.14159 times in 2024!\n",
    "def area(r):\n    return {'pi': 3.14, \"r\": r ** 2}  # tab:\t<|x|>\n",
    "Zwölf Boxkämpfer jagen Viktor; el pingüino, où ça? Привет, мир — 你好，世界 🙂",
)


def draft_model_of(located: Located, settings: Settings) -> Located | None:
    """Return the draft model set for a model, downloaded if needed. Raises ModelUnavailable if it
    is missing or the model itself."""
    name = draft_model_name(located, settings)
    if not name:
        return None
    drafter = locate(settings.models.resolve_alias(name), settings.models)
    if drafter.path == located.path:
        raise ModelUnavailable(
            f"the draft model of {located.names[0]} is this model itself",
            hint="speculation.draft_model names a smaller model with the same vocabulary",
        )
    return drafter


def draft_model_for(
    located: Located, tokenizer: Tokenizer, settings: Settings, *, strict: bool
) -> Located | None:
    """Return the draft model, with its vocabulary checked. A global one that does not fit is only
    logged, unless `strict`. Raises ModelUnavailable."""
    override = settings.overrides_of(located.names).speculation.draft_model
    try:
        drafter = draft_model_of(located, settings)
        if drafter is not None:
            check_vocabulary(tokenizer, Tokenizer.load(drafter.path), drafter.names[0])
    except ModelUnavailable as error:
        if strict or override is not None:
            raise
        _log.warning("%s has no draft model: %s", located.names[0], error.message)
        return None
    return drafter


def draft_model_bytes(located: Located, settings: Settings) -> int:
    """Return the bytes of the draft model's weights; 0 if it is missing."""
    name = settings.models.resolve_alias(draft_model_name(located, settings))
    if not name:
        return 0
    try:
        drafter = find_here(name, settings.models)
    except ModelUnavailable:
        return 0
    return 0 if drafter is None or drafter.path == located.path else weight_bytes(drafter.path)


def check_vocabulary(tokenizer: Tokenizer, other: Tokenizer, name: str) -> None:
    """Raise ModelUnavailable unless both tokenizers give the same ids for the same text."""
    shared = tokenizer.vocabulary & other.vocabulary
    token = next((t for t in sorted(shared) if tokenizer.token_id(t) != other.token_id(t)), None)
    if token is not None:
        ids = f"{tokenizer.token_id(token)} here, {other.token_id(token)} there"
        raise _refused(name, f"the token {token!r} has the id {ids}")
    text = next((s for s in _SAMPLES if tokenizer.encode(s) != other.encode(s)), None)
    if text is not None:
        raise _refused(name, f"it reads {text[:20]!r} as other tokens")


def draft_model_name(located: Located, settings: Settings) -> str:
    """Return the name of the draft model set for a model, or ""."""
    speculation = settings.speculation_of(located.names)
    return speculation.draft_model if Method.DRAFT in methods_of(speculation.mode) else ""


def _refused(name: str, reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"the draft model {name} has another vocabulary: {reason}",
        hint="choose a smaller model of the same family, or leave speculation.draft_model empty",
    )
