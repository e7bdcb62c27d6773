"""The parts of some work as one array that any thread may have. A job of the mlx thread."""

from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import NDArray

from omlx_server.compute.embed.batch import Work

Numbers = NDArray[np.float32]


def gathered(make: Callable[[], Work], count: int) -> Generator[None, None, Numbers]:
    """[count, D] or [count], in the order of the inputs; one slice up to each yield.

    `make` is called in the first slice, so that what it raises ends the job as any other error.
    """
    found: dict[int, Numbers] = {}
    for part in make():
        if part is not None:
            found.update(zip(part.indices, np.array(part.values), strict=True))
        yield
    return np.stack([found[index] for index in range(count)])
