"""Waiting for tasks that may not be left behind. No I/O."""

import asyncio
from collections.abc import Collection
from typing import Any


async def all_done(futures: "Collection[asyncio.Future[Any]]") -> bool:
    """Waits for all of them, however often this task is cancelled meanwhile, and raises nothing of theirs.

    Returns whether it was cancelled, for those that owe it to somebody.
    """
    together = asyncio.gather(*futures, return_exceptions=True)
    cancelled = False
    while not together.done():
        try:
            await asyncio.wait({together})
        except asyncio.CancelledError:
            cancelled = True
    return cancelled
