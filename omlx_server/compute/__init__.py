"""The only code that imports mlx. Everything here runs on the mlx thread.

Importing this package makes the fast BLAS available and tunes malloc, both before mlx itself is
loaded; that is why it is done here and not by a caller who might forget it.
"""

from omlx_server.compute import blas, malloc

FAST_BLAS = blas.preload()
KEEPS_FREED_MEMORY = malloc.keep_freed_memory()
