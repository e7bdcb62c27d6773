"""The store that machines share: names, bytes, links. It forgets what was used longest ago."""

from collections import OrderedDict
from collections.abc import Iterable

from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Record
from scripts.scaling.assumptions import Network
from scripts.scaling.events import Events, Link


class SharedStore:
    """So many `boxes` behind one name. Blocks are spread evenly over them by their keys, so their
    links and bytes are those of one larger box. A call is for one block of `call_bytes`, which is
    a block of a server, however large the simulated ones are."""

    def __init__(self, events: Events, network: Network, boxes: int, call_bytes: int) -> None:
        self._events = events
        self.network = network
        self._call_bytes = call_bytes
        self.out = Link(network.store_bytes_per_second * boxes)
        self.into = Link(network.store_bytes_per_second * boxes)
        self._room = network.store_bytes * boxes
        self._blocks: OrderedDict[BlockKey, int] = OrderedDict()
        self.nbytes = 0
        self.asked = 0
        """How many names the store was asked for."""
        self.failed = 0
        """How many transfers were given up, because they took longer than the deadline."""

    def __len__(self) -> int:
        return len(self._blocks)

    def having(self, records: Iterable[Record]) -> list[Record]:
        """Those of the records that are here."""
        records = list(records)
        self.asked += len(records)
        return [record for record in records if record.key in self._blocks]

    def put(self, key: BlockKey, nbytes: int) -> None:
        self.nbytes += nbytes - self._blocks.pop(key, 0)
        self._blocks[key] = nbytes
        while self.nbytes > self._room:
            _, gone = self._blocks.popitem(last=False)
            self.nbytes -= gone

    def get(self, key: BlockKey) -> int | None:
        """The size of a block, which counts as used; None where there is none."""
        if key not in self._blocks:
            return None
        self._blocks.move_to_end(key)
        return self._blocks[key]

    def transfer(self, link: Link, nbytes: int) -> float | None:
        """When a transfer ends on one of the two links. All that are under way take turns, call by
        call: None where a call would not get its turn before the deadline. Then nothing is sent."""
        if link.under_way * self._call_bytes / link.rate > self.network.deadline:
            self.failed += 1
            return None
        end = link.take(self._events.now, nbytes)
        link.under_way += 1

        def ended() -> None:
            link.under_way -= 1

        self._events.at(end, ended)
        return end
