"""One backend object of a session, from its building to its disposal: the phases, and what each allows. No I/O."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Literal

import attrs

from .. import checks
from ..backends.base import Backend, StopMode, StopReason
from ..errors import BackendTimeout, RuntimeFailure
from ..tasks import exits_contained, foreign
from .failures import combine

Phase = Literal["active", "stopping", "disposing", "terminated", "failed"]

#: What happens to a generation in a phase. Anything that is not here leaves the phase as it is.
_NEXT: Final[dict[tuple[Phase, str], Phase]] = {
    ("active", "stop"): "stopping",
    ("stopping", "idle"): "active",
    ("active", "dispose"): "disposing",
    ("stopping", "dispose"): "disposing",
    ("disposing", "disposed"): "terminated",
    ("disposing", "dispose failed"): "failed",
}


@attrs.frozen(kw_only=True)
class Deadlines:
    """Seconds. Raises TypeError for what is no number of them.

    ``stop`` and ``dispose``: for those calls of a backend, and for closing a run's interactions. ``after_step``: until
    a stop that waits for the end of the step becomes immediate. ``exit``: for ``send`` to end once the turn has.
    ``grace``: for ``send`` to end after a disposal, before the session counts as quarantined.
    """

    stop: float = attrs.field(default=30.0, validator=checks.seconds)
    dispose: float = attrs.field(default=30.0, validator=checks.seconds)
    after_step: float = attrs.field(default=600.0, validator=checks.seconds)
    exit: float = attrs.field(default=30.0, validator=checks.seconds)
    grace: float = attrs.field(default=0.1, validator=checks.seconds)


Spawn = Callable[[Coroutine[Any, Any, Any], str], "asyncio.Task[Any]"]


class Generation:
    """A backend and what was tried with it. ``failure`` is what its stop raises from now on; ``disposal_failure`` what
    its disposal raised. ``runs``: how many are on it and have not exited.
    """

    def __init__(self, number: int, name: str, backend: Backend, deadlines: Deadlines, spawn: Spawn) -> None:
        self.number = number
        #: For sentences: which backend of which session.
        self.name = name
        self.backend = backend
        self.phase: Phase = "active"
        self.runs = 0
        #: It is to be replaced once nothing runs on it.
        self.stale = False
        #: Word of its quarantine was left; True where it is permanent.
        self.noted: bool | None = None
        self.failure: BaseException | None = None
        self.disposal_failure: BaseException | None = None
        self._deadlines = deadlines
        self._spawn = spawn
        self._disposal: asyncio.Task[None] | None = None
        self._failing: asyncio.Task[None] | None = None
        #: What a stop has raised, before the backend is disposed for it.
        self._raised: BaseException | None = None
        #: Calls of its stop that have not returned.
        self._stops = 0

    @property
    def usable(self) -> bool:
        """May a run be begun on it?"""
        return self.phase == "active" and not self.stale

    def moves(self, what: str) -> None:
        self.phase = _NEXT.get((self.phase, what), self.phase)

    def leave(self) -> None:
        """A run has exited."""
        self.runs -= 1
        self._rest()

    def _rest(self) -> None:
        """A backend that still stops is not sent to, or it would stop what comes next."""
        if not self.runs and not self._stops and self._raised is None:
            self.moves("idle")

    async def stop(self, reason: StopReason, mode: StopMode, entered: asyncio.Event) -> None:
        """Asks the backend to stop. Where that fails it is disposed, and every later stop raises the same error.

        ``entered`` is set when the backend's ``stop`` has been entered, or will not be.
        """
        if self._raised is None and self._failing is None:
            self.moves("stop")
            # Who waits for the end of a step decides how long.
            seconds = self._deadlines.stop if mode == "immediate" else None

            async def call() -> None:
                # Set before, in one stretch with what the backend does at once: who waits for it runs later.
                entered.set()
                try:
                    with exits_contained("it"):
                        await self.backend.stop(reason, mode)
                except Exception as error:
                    # At once: whoever wants to escalate must not call it again.
                    self._raised = error
                    raise

            self._stops += 1
            try:
                self._raised = await self._bounded(call, "stop", seconds) or self._raised
            finally:
                self._stops -= 1
                self._rest()
            if self._raised is None:
                return
        entered.set()
        failure = await self.given_up()
        assert failure is not None
        raise failure

    async def given_up(self) -> BaseException | None:
        """What it was given up for, once it is disposed; None if it was not."""
        if self._raised is not None:
            await self.fail(self._raised)
        elif self._failing is not None:
            await asyncio.shield(self._failing)
        return self.failure

    async def fail(self, error: BaseException) -> None:
        """The backend cannot be stopped: give it up. The first failure counts."""
        if self._failing is None:
            self._failing = self._spawn(self._fail(error), "backend failed")
        await asyncio.shield(self._failing)

    async def _fail(self, error: BaseException) -> None:
        await self.dispose()
        self.failure = combine("the backend could be neither stopped nor disposed", [error, self.disposal_failure])

    async def dispose(self) -> None:
        """Gives the backend up, once. Raises nothing: see ``disposal_failure``."""
        if self._disposal is None:
            self.moves("dispose")
            self._disposal = self._spawn(self._dispose(), "dispose backend")
        await asyncio.shield(self._disposal)

    async def disposed(self) -> None:
        """Waits for a disposal that is under way."""
        if self._failing is not None:
            await asyncio.shield(self._failing)
        if self._disposal is not None:
            await asyncio.shield(self._disposal)

    async def _dispose(self) -> None:
        self.disposal_failure = await self._bounded(self.backend.dispose, "dispose", self._deadlines.dispose)
        self.moves("disposed" if self.disposal_failure is None else "dispose failed")

    async def _bounded(
        self, call: Callable[[], Awaitable[None]], what: str, seconds: float | None
    ) -> BaseException | None:
        """What a call of the backend failed with, its time being over included."""

        async def called() -> None:
            with exits_contained("it"):
                await call()

        task = self._spawn(called(), f"backend {what}")
        try:
            await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            task.cancel()
            return BackendTimeout(
                f"{what}() did not return within {seconds:g} s, and {self.name} is given up; "
                "mend it, or give it more time"
            )
        if task.cancelled():
            return RuntimeFailure(f"{what}() of {self.name} cancelled itself; mend the backend")
        error = task.exception()
        return None if error is None else foreign(error)
