"""Messages between ranks as bytes.

They are pickles of a fixed set of classes: values of the core, and nothing that runs code when it
is read. Source: Python, "pickle: Restricting Globals".
"""

import io
import pickle
from typing import Any, get_args

from omlx_server.core.blocks.block import Worth
from omlx_server.core.blocks.record import Part, Record
from omlx_server.core.blocks.restore import Piece, RestorePlan
from omlx_server.core.cluster import told
from omlx_server.core.cluster.meeting import Said
from omlx_server.core.memory.shape import Decode, Prefill
from omlx_server.core.request import SamplingParams
from omlx_server.core.step import Chunk, Cut, Join, Restore, RowCut, SequenceId, Step

_VALUES = (
    Chunk,
    Cut,
    Decode,
    Join,
    Part,
    Piece,
    Prefill,
    Record,
    Restore,
    RestorePlan,
    RowCut,
    SamplingParams,
    SequenceId,
    Step,
    Worth,
    *get_args(told.Told),
    told.Found,
    *get_args(Said),
)
_KNOWN = {(each.__module__, each.__qualname__): each for each in _VALUES}


class NotOurs(Exception):
    """These bytes are no message of another rank."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The class of this name. Raises NotOurs where no message has one."""
        if (module, name) not in _KNOWN:
            raise NotOurs(f"a message has a {name}")
        return _KNOWN[module, name]


def written(message: object) -> bytes:
    """The bytes of a message."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def read(data: bytes) -> Any:
    """The message in these bytes. Raises NotOurs where they hold none."""
    try:
        return _Reader(io.BytesIO(data)).load()
    except NotOurs:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise NotOurs(f"a message is damaged: {error!r}") from error
