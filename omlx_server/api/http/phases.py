"""When what happened to one prompt: queued, read, answered. asyncio thread; monotonic seconds."""

import time
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Phases:
    """`admitted`: its turn came. `restored`: from when to when what is known of it was
    put together again. `first`, `last`: tokens of all its choices. None: not yet."""

    prompt_tokens: int
    queued: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    restored: tuple[float, float] | None = None
    first: float | None = None
    last: float | None = None
    cached_tokens: int = 0
    generated: int = 0
    finished: list[str] = field(default_factory=list)

    def token(self, now: float) -> None:
        self.generated += 1
        self.first = now if self.first is None else self.first
        self.last = now
