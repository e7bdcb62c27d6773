"""Models that are no models, for tests of the pool they come and go in."""

import asyncio
from collections.abc import Callable, Sequence

from omlx_server.engine.pool.entry import ModelRequest, Rules

SIZE = 10
SHARE = 85  # of a hundred: what weights may take


class Made:
    """One copy of a model. `held` by so many of a test's clients."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.held = 0
        self.alive = True


class Workshop:
    """A loader that takes `seconds` for each thing, and judges whether its rules are kept."""

    def __init__(self, rules: Rules, sizes: dict[str, int] | None = None) -> None:
        self.rules = rules
        self.sizes = sizes or {}
        self.seconds = 0.002
        self.unload_seconds = 0.002
        self.gate = asyncio.Event()
        self.gate.set()
        self.done: list[str] = []
        self.wrong: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.unfit: dict[str, Exception] = {}
        self.unload_fails: dict[str, Exception] = {}
        self._there: list[Made] = []
        self._loading: list[str] = []

    @property
    def there(self) -> Sequence[Made]:
        """All that hold memory."""
        return tuple(self._there)

    async def check(self, key: str) -> None:
        await asyncio.sleep(self.seconds)
        if key in self.unfit:
            raise self.unfit[key]

    async def load(self, key: str, note: Callable[[int], None]) -> Made:
        self._loading.append(key)
        self._judge()
        try:
            await asyncio.sleep(self.seconds)
            await self.gate.wait()
            note(self.size(key) // 2)
            if key in self.fails:
                raise self.fails[key]
        finally:
            self._loading.remove(key)
        made = Made(key)
        self._there.append(made)
        self.done.append(f"+{key}")
        return made

    async def unload(self, made: Made) -> None:
        self._judge_going(made)
        await asyncio.sleep(self.unload_seconds)
        self._judge_going(made)
        if made.key in self.unload_fails:
            raise self.unload_fails.pop(made.key)
        made.alive = False
        self._there.remove(made)
        self.done.append(f"-{made.key}")

    def size(self, key: str) -> int:
        return self.sizes.get(key, SIZE)

    def wanted(self, key: str, **more: object) -> ModelRequest:
        return ModelRequest(key, self.size(key), **more)  # type: ignore[arg-type]

    def _judge_going(self, made: Made) -> None:
        if made.held > 0:
            self.wrong.append(f"{made.key} goes while {made.held} use it")
        if not made.alive:
            self.wrong.append(f"{made.key} goes twice")

    def _judge(self) -> None:
        """Something is about to be loaded."""
        keys = [*(made.key for made in self._there), *self._loading]
        held, rules = sum(map(self.size, keys)), self.rules
        if len(self._loading) > 1:
            self.wrong.append(f"at once: {self._loading}")
        if len(set(keys)) < len(keys):
            self.wrong.append(f"twice: {keys}")
        if rules.max_loaded and len(keys) > rules.max_loaded:
            self.wrong.append(f"too many: {keys}")
        if rules.limit and 100 * held > SHARE * rules.limit:
            self.wrong.append(f"too large: {keys}")
