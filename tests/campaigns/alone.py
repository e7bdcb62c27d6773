"""Processes of their own, forked from one that has imported what they run."""

import multiprocessing
from multiprocessing.context import ForkServerContext

_MODULES = ("hostile", "pressure", "several", "soak")


def forking() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"tests.campaigns.{name}" for name in _MODULES])
    return context
