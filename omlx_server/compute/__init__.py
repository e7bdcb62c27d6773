"""The only code that computes with MLX. Everything here runs on the mlx thread.

Importing this package loads the fast BLAS, which must happen before mlx is loaded.
"""

from omlx_server.compute.hardware import blas

FAST_BLAS = blas.preload()
