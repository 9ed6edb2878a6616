"""Processes that cost no imports: all are forked from one parent that has torch and the runtime already."""

import multiprocessing as mp
from multiprocessing.context import ForkServerContext

PRELOADED = [  # torch imports torch._dynamo, some seconds of it, when a dispatch mode first sees an operation
    "torch.distributed",
    "torch._dynamo",
    "torch.testing",
    "fourfold.runtime.executor",
    "fourfold.train.loop",
    "fourfold.train.session",
]


def forking_context() -> ForkServerContext:
    """The context of a parent that starts with its first process and ends with the tests."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
