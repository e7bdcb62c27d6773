"""The account of memory as clients are told it: the engine's, and what is kept on this side."""

from dataclasses import replace

from omlx_server.api.models.served import ServedModels
from omlx_server.api.response_store.store import Store
from omlx_server.core.memory.ledger import MemoryReport


def account_of(models: ServedModels, responses: Store) -> MemoryReport | None:
    """None where no memory is watched, or while the first model loads."""
    report = models.vitals.memory
    if report is None:
        return None
    grammars = sum(m.grammars.nbytes + m.grammars.bytes_apart for m in models.loaded())
    ledger = replace(report.ledger, grammars=grammars, responses=responses.memory_bytes)
    return replace(report, ledger=ledger)
