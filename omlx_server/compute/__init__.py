"""The only code that computes with mlx. Everything here runs on the mlx thread.

Importing this package loads the fast BLAS, which must happen before mlx itself is loaded; so it
is done here and not by a caller, who might forget it.
"""

from omlx_server.compute.hardware import blas

FAST_BLAS = blas.preload()
