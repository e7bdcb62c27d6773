"""Whether a model fits into a memory limit."""

import pytest

from omlx_server.core.memory.fit import CONTEXT, WEIGHTS_SHARE, Fit, fit_of

GB = 10**9


@pytest.mark.parametrize(
    ("weights", "token_bytes", "limit", "fit"),
    [
        (4.6, 147_456, 12.9, Fit.FITS),  # Qwen3 8B in 16 GiB
        (4.6, 147_456, 8.0, Fit.TIGHT),
        (4.6, 147_456, 5.5, Fit.TIGHT),
        (4.6, 147_456, 5.4, Fit.TOO_LARGE),
        (6.0, 32_768, 8.0, Fit.FITS),  # Qwen3.5 9B keeps a fourth of it
        (20.4, 20_480, 25.8, Fit.FITS),
        (20.4, 20_480, 23.9, Fit.TOO_LARGE),  # its weights alone are more than the share
        (0.1, 0, 1.0, Fit.FITS),
    ],
)
def test_weights_and_a_long_conversation(
    weights: float, token_bytes: int, limit: float, fit: Fit
) -> None:
    assert fit_of(round(weights * GB), token_bytes, round(limit * GB)) is fit


def test_no_conversation_is_longer_than_the_models_context() -> None:
    limit = 2 * GB
    assert fit_of(GB, GB // CONTEXT, limit) is Fit.TIGHT
    assert fit_of(GB, GB // CONTEXT, limit, context=CONTEXT // 2) is Fit.FITS


def test_a_model_that_fits_can_be_loaded() -> None:
    for weights in range(1, 100):
        if fit_of(weights, 0, 100) is not Fit.TOO_LARGE:
            assert weights <= 100 * WEIGHTS_SHARE


def test_larger_models_are_thought_to_keep_more() -> None:
    for weights, least in ((5 * GB, 131_072), (40 * GB, 300_000)):
        limit = round((weights + least * CONTEXT) / 0.95)
        assert fit_of(weights, None, limit) is Fit.TIGHT
        assert fit_of(weights, None, round(1.25 * limit)) is Fit.FITS
