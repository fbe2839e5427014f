"""An event loop whose every run can be had again from its seed: a virtual clock, and ready callbacks in a drawn order.

Nothing real is waited for: where nothing is ready, the clock jumps to the next timer. There are no threads and no
file descriptors in it, so a coroutine that needs one fails at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import Context
from random import Random
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

T = TypeVar("T")
#: More callbacks than any test needs. One that polls for ever gets here.
LIMIT = 200_000
#: So often the tasks that are left at the end are cancelled.
_ROUNDS = 20


class Deadlock(AssertionError):
    """Nothing is ready, no timer runs, and the main coroutine has not ended."""


class StepLimit(AssertionError):
    """So many callbacks have run that something goes round in circles."""


class Leftover(AssertionError):
    """The main coroutine has ended, and a task is pending or an exception was never looked at."""


class Crashed(BaseException):
    """The process has died here, as far as the test is concerned."""


class _Ready(deque[asyncio.Handle]):
    """Gives any of what is ready, and counts what it gave."""

    def __init__(self, random: Random, limit: int, crash_after: int | None) -> None:
        super().__init__()
        self._random = random
        self._limit = limit
        self._crash_after = crash_after
        self.given = 0

    def popleft(self) -> asyncio.Handle:
        if self.given == self._crash_after:
            raise Crashed
        if self.given >= self._limit:
            raise StepLimit(f"{self.given} callbacks have run, and it is not over")
        self.given += 1
        place = self._random.randrange(len(self))
        self.rotate(-place)
        handle = super().popleft()
        self.rotate(place)
        return handle


class _Numbered:
    """Hashed by its number, so that a set of these has the same order in every run."""

    _number: int

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(_Numbered, asyncio.Future[Any]):
    def __new__(cls, number: int, **_: Any) -> "_Future":
        future = super().__new__(cls)
        future._number = number
        return future

    def __init__(self, number: int, **more: Any) -> None:
        super().__init__(**more)


class _Task(_Numbered, asyncio.Task[Any]):
    def __new__(cls, number: int, coro: Any, **_: Any) -> "_Task":
        task = super().__new__(cls)
        task._number = number
        return task

    def __init__(self, number: int, coro: Any, **more: Any) -> None:
        super().__init__(coro, **more)


class SeededLoop(asyncio.BaseEventLoop):
    """Its ``time`` is virtual and begins at 0. ``failures`` are the contexts that its exception handler got."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int, *, limit: int = LIMIT, crash_after: int | None = None) -> None:
        super().__init__()
        self._now = 0.0
        self._numbers = 0
        self._made: WeakSet[asyncio.Future[Any]] = WeakSet()
        self._ready = _Ready(Random(seed), limit, crash_after)
        self._selector = self
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.failures.append(context))
        self.set_task_factory(_make_task)

    @property
    def steps(self) -> int:
        """So many callbacks have run."""
        return self._ready.given

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """What the base class takes for waiting: nothing is ready for ``timeout`` seconds, or ever."""
        if timeout is None:
            raise Deadlock("nothing is ready and no timer runs; these wait:\n" + waiting(self))
        if timeout > 0:
            # Not now + timeout: rounding must not leave the clock before the timer.
            self._now = self._scheduled[0].when()
        return []

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(self._next(), loop=self)
        self._made.add(future)
        return future

    def made(self) -> list[asyncio.Future[Any]]:
        """The futures and tasks of this loop that are still there, oldest first."""
        return sorted(self._made, key=hash)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError(f"{func!r} needs a thread, and this loop has none")

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _make_task(loop: Any, coro: Any, context: Context | None = None, **more: Any) -> asyncio.Task[Any]:
    task = _Task(loop._next(), coro, loop=loop, context=context, **more)
    loop._made.add(task)
    return task


def run(
    main: Coroutine[Any, Any, T],
    seed: int,
    *,
    limit: int = LIMIT,
    crash_after: int | None = None,
    on_crash: Callable[[], object] = lambda: None,
) -> T:
    """Runs ``main`` on a loop of its own, to the end of it and of all that it has started.

    With ``crash_after`` the run ends before that many callbacks plus one: ``on_crash()`` is called at that moment, and
    Crashed is raised; what the dying tasks do afterwards is to count for nothing, which ``on_crash`` has to see to.
    Raises Deadlock, StepLimit, Leftover, and what ``main`` raises.
    """
    loop = SeededLoop(seed, limit=limit, crash_after=crash_after)
    try:
        try:
            result = loop.run_until_complete(main)
        except Crashed:
            on_crash()
            raise
        if left := waiting(loop):
            raise Leftover("it has ended, and these tasks have not:\n" + left)
        loop.run_until_complete(loop.shutdown_asyncgens())
        unseen = [f"{future!r}" for future in loop.made() if getattr(future, "_log_traceback", False)]
        unseen += [_told(context) for context in loop.failures]
        if unseen:
            raise Leftover("nobody has looked at these failures:\n" + "\n".join(unseen))
        return result
    finally:
        _wind_up(loop)


def _told(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r} {context.get('future') or context.get('handle')}"


def _wind_up(loop: SeededLoop) -> None:
    """Ends what still runs, so that it disturbs no other test."""
    left = _Ready(Random(0), LIMIT, None)
    left.extend(loop._ready)
    loop._ready = left
    for _ in range(_ROUNDS):
        # What ends may begin something to clean up after itself.
        if not (tasks := asyncio.all_tasks(loop)):
            break
        for task in tasks:
            task.cancel()
        with suppress(Exception):
            loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
    for future in loop.made():
        future._log_traceback = False
    loop.close()


def waiting(loop: asyncio.AbstractEventLoop) -> str:
    """The pending tasks by name, each with the places where it waits, outermost first."""
    tasks = sorted(asyncio.all_tasks(loop), key=hash)
    return "\n".join(f"  {task.get_name()}: " + " > ".join(_places(task.get_coro())) for task in tasks)


def _places(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        for kind in ("cr", "ag", "gi"):
            if (code := getattr(awaited, f"{kind}_code", None)) is not None:
                frame = getattr(awaited, f"{kind}_frame")
                yield f"{code.co_qualname}:{frame.f_lineno if frame is not None else 'over'}"
                awaited = getattr(awaited, f"{kind}_yieldfrom" if kind == "gi" else f"{kind}_await")
                break
        else:
            yield type(awaited).__name__
            return
