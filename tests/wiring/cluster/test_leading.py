"""Before the ranks connect, which can't be interrupted, each has said that it is still there."""

from omlx_server.core.cluster.handshake import Formation, Ready, RollCall
from omlx_server.wiring.cluster.leading import LeadingCluster
from tests.api.harness import wait_for
from tests.wiring.cluster.port import ADDRESSES, Port, hello


def test_ranks_that_are_ready_are_asked_once_more(port: Port) -> None:
    cluster = LeadingCluster(port.gathering.options, "ring")
    cluster.gathering = port.gathering
    link, _ = port.says_hello(hello())
    heard = list[object]()
    link.start(heard.append)
    meeting = cluster._all_there()
    link.tell(Ready(("127.0.0.1:2",)))
    wait_for(lambda: next(meeting) or RollCall() in heard)
    for _ in range(3):
        next(meeting)
    assert heard == [RollCall()]
    link.tell(Ready(ADDRESSES))
    wait_for(lambda: next(meeting, Formation) is Formation)
    wait_for(lambda: len(heard) == 2)
    form = heard[1]
    assert isinstance(form, Formation) and [*ADDRESSES] in form.addresses
    link.close()
