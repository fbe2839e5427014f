"""One request to hand a run over, from the asking to the seal. No I/O: a run's ``handing`` drives it."""

import asyncio
from collections.abc import Callable
from functools import partial

from ...journal.events import Draft
from ..tasks import seen
from .pause import HandoffPause


class HandoffRequest:
    """``ready`` is True once the backend stands at a step boundary and has reported its remaining steps; False where
    the run ends, or the request does, before that. ``sealed`` is True once the pause is durable: then nothing more
    comes of this run, and its turn waits for the successor. False after a cancel, a stop, or another end of the run; it
    raises what kept the pause from being written. Both may be awaited by anybody, any number of times.

    What is committed is an intent of this process: the pause is written when the backend's stream has ended.
    """

    def __init__(self, pause: HandoffPause, sealable: Callable[["HandoffRequest"], Draft], changed: Callable[[], None]):
        self.pause = pause
        self._ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._sealed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        #: The backend stands at a boundary, with so many steps to go.
        self.held = False
        self.remaining_steps: int | None = None
        self.committed = False
        #: Nothing can come of it any more, or something has.
        self.over = False
        self._sealable = sealable
        self._changed = changed

    @property
    def ready(self) -> "asyncio.Future[bool]":
        return _own(self._ready)

    @property
    def sealed(self) -> "asyncio.Future[bool]":
        return _own(self._sealed)

    def preview(self) -> Draft:
        """The handoff/pause that ``commit`` would seal the run with. Raises HandoffRefused where the backend does not
        stand at a boundary, or the run has no durable composition.
        """
        return self._sealable(self)

    def commit(self) -> bool:
        """The backend is told to pause. False where it does not stand at a boundary any more. Raises HandoffRefused
        where the run has no durable composition.
        """
        if not self.held or self.over or self.committed:
            return False
        self._sealable(self)
        self.committed = True
        self._changed()
        return True

    def cancel(self) -> None:
        """The run goes on. Does nothing once it was committed."""
        if not self.committed:
            self.finish(False)

    # ------------------------------------------------------------ for the run

    def when_over(self, then: Callable[[], object]) -> None:
        self._sealed.add_done_callback(lambda _: then())

    def hold(self, remaining_steps: int | None) -> None:
        self.held, self.remaining_steps = True, remaining_steps
        if not self._ready.done():
            self._ready.set_result(True)

    def let_go(self) -> None:
        """The run comes to its end: it stands at no boundary any more, and comes to none."""
        self.held = False
        if not self._ready.done():
            self._ready.set_result(False)

    def finish(self, sealed: bool | BaseException) -> None:
        """Once: whatever comes after it changes nothing."""
        self.over = True
        self.let_go()
        if not self._sealed.done():
            if isinstance(sealed, bool):
                self._sealed.set_result(sealed)
            else:
                self._sealed.set_exception(sealed)
                seen(self._sealed)
        self._changed()


def _own(future: "asyncio.Future[bool]") -> "asyncio.Future[bool]":
    """For one who waits: cancelling it cancels nothing of the others."""
    if future.done():
        return future
    own: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    future.add_done_callback(partial(_told, own))
    return own


def _told(own: "asyncio.Future[bool]", future: "asyncio.Future[bool]") -> None:
    if own.done():
        return
    error = future.exception()
    if error is None:
        own.set_result(future.result())
    else:
        own.set_exception(error)
        # At once: nobody has to wait, and the loop may end before it calls back.
        seen(own)
