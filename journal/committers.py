"""What group commit needs of asyncio: a few threads that wait for the disk in a loop's place, and word to the loop.

The threads are shared by all journals of the process. A handful of them keeps a disk as busy as one for each session
would, and wakes less. Imports asyncio nowhere: who has a loop has imported it.
"""

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

#: At most so many journals are written at once for event loops; the others take turns.
MOST: Final = 8

Work = Callable[[], object]


class Committers:
    """Threads that do what they are given, oldest first. They are there as long as somebody uses them."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._users = 0
        self._threads: list[Thread] = []
        self._works: SimpleQueue[Work | None] = SimpleQueue()
        #: Works that were given and are not done.
        self._ahead = 0

    def enter(self) -> None:
        with self._mutex:
            self._users += 1

    def leave(self) -> None:
        """The last user waits until the threads have ended."""
        with self._mutex:
            self._users -= 1
            if self._users:
                return
            threads, self._threads = self._threads, []
            works, self._works = self._works, SimpleQueue()
        for _ in threads:
            works.put(None)
        for thread in threads:
            thread.join()

    def run(self, work: Work) -> None:
        """By a user. Whoever waits for ``work`` is told by it, also of what fails."""
        with self._mutex:
            self._works.put(work)
            self._ahead += 1
            # One that waits for a slow disk must not be the only one: where all have something to do comes another.
            if len(self._threads) < min(self._ahead, MOST):
                name = f"commit {len(self._threads) + 1}"
                thread = Thread(target=self._serve, args=(self._works,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, works: "SimpleQueue[Work | None]") -> None:
        while (work := works.get()) is not None:
            with suppress(BaseException):  # those who wait have been told, and the others need the thread
                work()
            with self._mutex:
                self._ahead -= 1


class Mailbox:
    """What other threads have to tell a loop: handed over many at a time, for all journals that the loop waits for."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        # Weak: the loop is the key under which the mailbox is kept.
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] = weakref.ref(loop)
        self._items: SimpleQueue[list[asyncio.Future[None]]] = SimpleQueue()
        self._due = False

    def post(self, futures: "list[asyncio.Future[None]]") -> None:
        self._items.put(futures)
        if not self._due:
            self._due = True
            loop = self._loop()
            if loop is not None:
                with suppress(RuntimeError):  # it is closed: nobody waits any more
                    loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        while not self._items.empty():
            for future in self._items.get():
                if not future.done():
                    future.set_result(None)


_mailboxes: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox]" = weakref.WeakKeyDictionary()


def mailbox(loop: "asyncio.AbstractEventLoop") -> Mailbox:
    box = _mailboxes.get(loop)
    if box is None:
        box = _mailboxes[loop] = Mailbox(loop)
    return box


shared = Committers()


def _after_fork() -> None:
    """The threads were not forked, and the mutex may be held by one that does not exist here."""
    global shared
    shared = Committers()


os.register_at_fork(after_in_child=_after_fork)
