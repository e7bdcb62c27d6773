"""The fast BLAS must be there before any test or campaign imports mlx: see omlx_server/compute."""

import omlx_server.compute  # noqa: F401
