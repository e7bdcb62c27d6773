"""The fast BLAS must be there before any test imports mlx: see omlx_server/compute/__init__.py."""

import omlx_server.compute  # noqa: F401
