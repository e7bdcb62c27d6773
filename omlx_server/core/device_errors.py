"""Errors of the device by their messages, and what is done about each. Pure."""

from collections import Counter, deque
from collections.abc import Mapping
from enum import Enum, StrEnum

# A failure is the first again after so many seconds without another of its class.
_WINDOW_SECONDS = 600.0


class DeviceFault(StrEnum):
    MEMORY = "memory"
    RESOURCE_LIMIT = "resource_limit"  # too many buffers
    WATCHDOG = "watchdog"  # work kept the display waiting
    TIMEOUT = "timeout"
    INNOCENT_VICTIM = "innocent_victim"  # of another program's failure
    HANG = "hang"
    INVALID_RESOURCE = "invalid_resource"
    SUBMISSIONS_IGNORED = "submissions_ignored"  # the process may use the GPU no more
    CONTEXT_LOST = "context_lost"  # as above, on CUDA
    WEIGHTS_UNREADABLE = "weights_unreadable"  # experts that stay on the disk
    UNKNOWN = "unknown"


class UnreadableWeights(RuntimeError):
    """Weights that are read when they are needed can't be read."""


OUT_OF_MEMORY = (DeviceFault.MEMORY, DeviceFault.RESOURCE_LIMIT)


class Reaction(Enum):
    """Ways to go on after a failed step. All but the last three keep every request."""

    GIVE_BACK = "memory is given back, and its requests go on"
    SHORTEN = "less is submitted at once from now on"
    RETRY = "its requests go on"
    START_OVER = "the model starts over with its requests"
    END_NEWEST = "the newest request ends"
    END_ALL = "its requests end"
    LEAVE = "the process ends, to be started anew"


# Parts of messages, whose case and blanks don't count, the more special ones first. Metal's are
# MTLCommandBufferError's descriptions, as MLX raises them; CUDA's are those of cudaGetErrorString.
_SIGNS: tuple[tuple[str, DeviceFault], ...] = (
    ("resource limit", DeviceFault.RESOURCE_LIMIT),
    ("unable to allocate", DeviceFault.MEMORY),
    ("maximum allowed buffer size", DeviceFault.MEMORY),
    ("out of memory", DeviceFault.MEMORY),
    ("insufficient memory", DeviceFault.MEMORY),
    ("cublas_status_alloc_failed", DeviceFault.MEMORY),
    ("impacting interactivity", DeviceFault.WATCHDOG),
    ("innocent victim", DeviceFault.INNOCENT_VICTIM),
    ("excessive gpu errors", DeviceFault.SUBMISSIONS_IGNORED),
    ("submissions ignored", DeviceFault.SUBMISSIONS_IGNORED),
    ("gpu hang", DeviceFault.HANG),
    ("gpu timeout", DeviceFault.TIMEOUT),
    ("callbackerrortimeout", DeviceFault.TIMEOUT),
    ("invalid resource", DeviceFault.INVALID_RESOURCE),
    ("pagefault", DeviceFault.INVALID_RESOURCE),
    ("address fault", DeviceFault.INVALID_RESOURCE),
    ("illegal memory access", DeviceFault.CONTEXT_LOST),
    ("misaligned address", DeviceFault.CONTEXT_LOST),
    ("launch timed out", DeviceFault.CONTEXT_LOST),
    ("unspecified launch failure", DeviceFault.CONTEXT_LOST),
    ("device-side assert", DeviceFault.CONTEXT_LOST),
    ("ecc error", DeviceFault.CONTEXT_LOST),
    ("command buffer", DeviceFault.UNKNOWN),
    ("[metal", DeviceFault.UNKNOWN),
    ("cuda error", DeviceFault.UNKNOWN),
    ("cublas", DeviceFault.UNKNOWN),
    ("cudnn", DeviceFault.UNKNOWN),
)

# What is done about the first failure of a class, the second, and so on; the last one repeats.
_REACTIONS: Mapping[DeviceFault, tuple[Reaction, ...]] = {
    DeviceFault.MEMORY: (Reaction.GIVE_BACK, Reaction.END_NEWEST),
    DeviceFault.RESOURCE_LIMIT: (Reaction.GIVE_BACK, Reaction.END_NEWEST),
    DeviceFault.WATCHDOG: (*[Reaction.SHORTEN] * 4, Reaction.START_OVER, Reaction.LEAVE),
    DeviceFault.TIMEOUT: (*[Reaction.SHORTEN] * 4, Reaction.START_OVER, Reaction.LEAVE),
    DeviceFault.INNOCENT_VICTIM: (Reaction.RETRY, Reaction.START_OVER, Reaction.LEAVE),
    DeviceFault.HANG: (Reaction.START_OVER, Reaction.LEAVE),
    DeviceFault.INVALID_RESOURCE: (Reaction.START_OVER, Reaction.LEAVE),
    DeviceFault.SUBMISSIONS_IGNORED: (Reaction.LEAVE,),
    DeviceFault.CONTEXT_LOST: (Reaction.LEAVE,),
    DeviceFault.WEIGHTS_UNREADABLE: (Reaction.RETRY, Reaction.END_ALL),
    DeviceFault.UNKNOWN: (Reaction.START_OVER, Reaction.START_OVER, Reaction.LEAVE),
}


def fault_of(error: BaseException) -> DeviceFault | None:
    """Return the class of a device's error; None if it is not one."""
    if isinstance(error, MemoryError):
        return DeviceFault.MEMORY
    if isinstance(error, UnreadableWeights):
        return DeviceFault.WEIGHTS_UNREADABLE
    if not isinstance(error, RuntimeError):
        return None
    message = str(error).lower().replace(" ", "")
    return next((fault for sign, fault in _SIGNS if sign.replace(" ", "") in message), None)


class RecentFaults:
    """Chooses the reaction to a failure by how many of its class came before it."""

    def __init__(self) -> None:
        self.counts = Counter[DeviceFault]()
        self.lost = ""  # why the process has to start anew, if it has to
        self._times: dict[DeviceFault, deque[float]] = {}

    def note(self, fault: DeviceFault, now: float) -> Reaction:
        """Note a failure at `now` (seconds), and return what to do about it."""
        self.counts[fault] += 1
        reactions = _REACTIONS[fault]
        times = self._times.setdefault(fault, deque(maxlen=len(reactions)))
        if times and now - times[-1] > _WINDOW_SECONDS:
            times.clear()
        times.append(now)
        reaction = reactions[len(times) - 1]
        if reaction is Reaction.LEAVE:
            self.lost = f"the device failed ({fault}), and the process has to start anew"
        return reaction
