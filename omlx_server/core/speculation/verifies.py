"""The conditions under which a model's rows can verify drafts."""

from enum import Flag, auto


class Verifies(Flag):
    """Whether rows can verify drafts alone or beside others: wrong ones must be taken back from
    their caches."""

    NEVER = 0
    ALONE = auto()
    TOGETHER = auto()
    ALWAYS = ALONE | TOGETHER
