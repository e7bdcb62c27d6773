"""The only code that computes with MLX, all on the mlx thread. Importing it loads the fast BLAS,
which must happen before MLX is loaded."""

from omlx_server.compute.hardware import blas

FAST_BLAS = blas.preload()
