"""Tasks: none is left behind, and what one raises is told by whoever waits for it. No I/O."""

import asyncio
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from .errors import RuntimeFailure, describe


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


class Tasks:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        #: They were cancelled by whoever owns them. A cancellation before that comes from outside.
        self.over = False

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return task

    async def cancel(self, seconds: float) -> None:
        """Cancels what still runs, and what that begins while it ends, and waits so long for it."""
        self.over = True
        loop = asyncio.get_running_loop()
        until, cancelled = loop.time() + seconds, {asyncio.current_task()}
        while left := self._running - {asyncio.current_task()}:
            for task in left - cancelled:
                task.cancel()
            cancelled |= left
            if loop.time() >= until:
                return
            # In short stretches: what is begun meanwhile is cancelled too.
            await asyncio.wait(left, timeout=max(0.0, until - loop.time()), return_when=asyncio.FIRST_COMPLETED)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)


def seen(future: "asyncio.Future[Any]") -> None:
    """Marks its failure as seen: it is told where it is waited for, and nobody has to wait."""
    if not future.cancelled():
        future.exception()


@contextmanager
def exits_contained(what: str) -> Iterator[None]:
    """``sys.exit`` in somebody's code is a failure of that code: raised in a task it would end the whole process, with
    everything else that runs there. Raises RuntimeError for it.
    """
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"{what} called sys.exit({error.code!r})") from error


def foreign(error: BaseException) -> BaseException:
    """The failure as others may be told it: what steers a task or an iterator is, raised by somebody else, a failure
    like any other.
    """
    if isinstance(error, asyncio.CancelledError):
        return RuntimeFailure("something that the kernel called cancelled itself; mend it so that it returns or raises")
    plain = isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration)
    if plain or isinstance(error, KeyboardInterrupt | SystemExit):
        return error
    failure = RuntimeFailure(f"something that the kernel called raised {describe(error, typed=True)}; mend it")
    failure.__cause__ = error
    return failure


def failure_of(future: "asyncio.Future[Any]") -> BaseException | None:
    """What it failed with, if it is done and failed."""
    if not future.done():
        return None
    return asyncio.CancelledError() if future.cancelled() else future.exception()
