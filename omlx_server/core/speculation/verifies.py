"""When the rows of a model can verify drafts."""

from enum import Flag, auto


class Verifies(Flag):
    """A row can when it is the only one (`ALONE`), or beside others. What was drafted wrongly must
    be taken back from its caches."""

    NEVER = 0
    ALONE = auto()
    TOGETHER = auto()
    ALWAYS = ALONE | TOGETHER
