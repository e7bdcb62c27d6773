"""The environment of a child: nothing of the user's settings, the same BLAS for everybody."""

import os
import sys

from omlx_server.compute import FAST_BLAS


def clean() -> dict[str, str]:
    """Ours without OMLX_ settings, with one BLAS thread, and the repository importable."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("OMLX_")}
    return {**env, "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def with_fast_blas() -> dict[str, str]:
    """For programs that don't load OpenBLAS before mlx by themselves, as our server does."""
    env = clean()
    if sys.platform == "linux" and FAST_BLAS is not None:
        env["LD_PRELOAD"] = FAST_BLAS
    return env
