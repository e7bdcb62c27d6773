"""The only code that computes with MLX, on the mlx thread. It loads the fast BLAS before MLX."""

from omlx_server.compute.hardware import blas

FAST_BLAS = blas.preload()
