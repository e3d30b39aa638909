"""Letting go of a record that its handler only waits with.

A handler that waits for something before it begins (credit, a free engine) would hold up every stop and every
rebalance for the whole drain time. Inside ``async with only_while_owned():`` the wait ends as soon as the
partition is closed: the record is given back, uncommitted, to whoever owns the partition next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from gristmill.worker.partition import Partition

owner: ContextVar[Partition | None] = ContextVar("gristmill_worker_partition", default=None)
"""Partition whose lane the current task is; set by the worker loop."""


class GivenBack(Exception):
    """The handler has let go of its record, which stays unsettled. Only the worker loop catches this."""


@asynccontextmanager
async def only_while_owned() -> AsyncIterator[None]:
    """Run the body only as long as the record's partition is open. Nothing in it may need to be undone by hand.

    Outside a worker's handler the body just runs.
    """
    partition = owner.get()
    if partition is None:
        yield
        return
    if partition.closed:
        raise GivenBack
    try:
        async with asyncio.timeout(None) as scope:
            partition.waits.add(scope)
            try:
                yield
            finally:
                partition.waits.discard(scope)
    except TimeoutError:
        if scope.expired():
            raise GivenBack from None
        raise
