"""A clock that a test moves."""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now
