"""Coefficients where nothing could be measured: every term as often as any model seen had it alive,
all at once. An upper bound, several times too high for most steps."""

from omlx_server.core.memory.estimate import Coefficients, Prefills

_ACTIVATIONS = 8.0
_SCORES = 6.0
_UNPACKED = 12.0
_GROWN = 3.0
_COPIED = 2.5
_LOGITS = 4.0

_INNER = (_ACTIVATIONS, _SCORES, _UNPACKED)
_PREFILLS = Prefills(wide=_INNER[:2], deep=(*_INNER, _GROWN, _COPIED))

STRUCTURAL = Coefficients(
    alone=_PREFILLS,
    together=_PREFILLS,
    layers=_INNER,
    head=(_LOGITS, *_INNER),
    copies=(_GROWN, 1.0),
    calibrated=False,
)
