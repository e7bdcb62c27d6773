"""What a system is asked to do, and what a system is."""

from dataclasses import dataclass
from typing import Any, Protocol

from scripts.benchmarks.process import Child
from scripts.benchmarks.timeline import Run

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The same prompt twice: as messages for a server, as token ids for the bare loop. With `text`
    a server is asked to continue that, and there are no messages."""

    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Late:
    """A prompt that comes when every stream has had `after` tokens; one token is wanted of it."""

    prompt: Prompt
    after: int = 3


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts that start at once; greedy; `out` tokens each, or fewer where an answer `may_end`."""

    prompts: tuple[Prompt, ...]
    out: int
    late: Late | None = None
    may_end: bool = False


class System(Protocol):
    """Something that answers prompts in a process of its own."""

    name: str
    child: Child

    def wait_until_ready(self) -> None: ...

    def run(self, workload: Workload) -> Run: ...


def as_json(workload: Workload) -> dict[str, Any]:
    """The form that crosses to the bare loop's process: token ids only."""
    late = workload.late
    return {
        "prompts": [prompt.tokens for prompt in workload.prompts],
        "out": workload.out,
        "late": {"tokens": late.prompt.tokens, "after": late.after} if late else None,
    }
