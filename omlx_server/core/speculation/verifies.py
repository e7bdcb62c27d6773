"""The conditions under which a model's rows can verify drafts."""

from enum import Flag, auto


class Verifies(Flag):
    """A row can verify when it is the only one (`ALONE`) or beside others (`TOGETHER`): wrong
    drafts must be taken back from its caches."""

    NEVER = 0
    ALONE = auto()
    TOGETHER = auto()
    ALWAYS = ALONE | TOGETHER
