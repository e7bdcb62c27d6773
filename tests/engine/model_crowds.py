"""Crowds of clients of several models, which share the device as the engine's models do."""

from functools import partial
from random import Random

from omlx_server.engine.turns import DeviceTurns, part_of
from tests.core.crowds import Crowd, small

_SECONDS = 8.0


class ModelCrowds:
    """Each of `crowds` has a model of its own. Clients of the same name are the same."""

    def __init__(self, crowds: list[Crowd]) -> None:
        self.crowds = crowds
        self.now = 0.0
        self._turns = DeviceTurns(lambda: self.now)
        for number, crowd in enumerate(crowds):
            crowd.part_for = partial(self._part_for, number)

    def live(self, seconds: float = _SECONDS) -> None:
        for crowd in self.crowds:
            crowd.begin()
        while True:
            sends = self.now < seconds
            for crowd in self.crowds if sends else ():
                crowd.run.now = self.now
                crowd.send_due()
            if not any(self._clients().values()):
                if not sends:
                    break
                self.now = min(crowd.next_due for crowd in self.crowds)
            self._turn()
        for crowd in self.crowds:
            crowd.end()

    def _turn(self) -> None:
        """Of the next one that computes something."""
        for number in self._turns.in_order(self._clients(), self._urgent_from()):
            crowd = self.crowds[number]
            with self._turns.turn(number) as away:
                crowd.run.now = self.now
                order = crowd.run.scheduler.prefill_order
                order.set_part(self._turns.parts[number], away)
                crowd.run.turn()
                crowd.run.take_ahead()
                took, self.now = crowd.run.now - self.now, crowd.run.now
            crowd.look()
            if took:
                return

    def _urgent_from(self) -> dict[int, float]:
        orders = [crowd.run.scheduler.prefill_order for crowd in self.crowds]
        return {number: order.urgent_from for number, order in enumerate(orders)}

    def _part_for(self, number: int, client: bytes) -> float:
        return part_of(number, client, self._clients())

    def _clients(self) -> dict[int, set[bytes]]:
        queues = [crowd.run.scheduler.queues for crowd in self.crowds]
        return {number: each.clients for number, each in enumerate(queues)}


def small_crowds(seed: int) -> ModelCrowds:
    """Two or three small crowds, of which some clients are in several."""
    rng = Random(seed)
    return ModelCrowds([small(rng.randrange(2**32)) for _ in range(rng.randint(2, 3))])
