"""Which sequences make way first when memory or rows are short: the newest ones of the last
priority class. Who has to make way, and when, say `Scheduler.relieve` and making_way.py. Pure.
"""

from collections.abc import Iterable

from omlx_server.core.scheduler.sequence import Sequence
from omlx_server.core.step import SequenceId


def first_to_go(sequences: Iterable[Sequence]) -> list[Sequence]:
    """These sequences in the order in which they make way."""
    return sorted(sequences, key=_by_age, reverse=True)


def _by_age(sequence: Sequence) -> tuple[int, float, SequenceId]:
    """A sort key: highest for the newest sequence of the last priority class."""
    return sequence.request.priority, sequence.request.arrived, sequence.id
