"""The state of the service, in the same words for every manager."""

from dataclasses import dataclass
from enum import StrEnum


class RunState(StrEnum):
    NOT_INSTALLED = "not installed"
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ServiceState:
    """`last_exit` is of the last run that has ended; `says` is the status text that the server
    sent."""

    state: RunState
    pid: int | None = None
    last_exit: int | None = None
    says: str = ""


def whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
