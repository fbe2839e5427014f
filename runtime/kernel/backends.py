"""The sessions' backends: built when one is needed, replaced, given up, and what is told of a quarantine. No I/O."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ...journal.errors import InvalidEvent, JournalError
from ...journal.events import Draft, JsonObject
from ..backends.base import Backend, BackendContext, unsuited
from ..composition import RunComposition
from ..errors import BackendTimeout, RuntimeFailure, describe
from ..tasks import exits_contained, failure_of, foreign
from .entries import Entries
from .entry import Entry
from .generations import Generation
from .parts import Parts
from .reasons import failed
from .run import Cancelled, Run

#: Characters of the reason in the journal.
_REASON: Final = 2_000


class Backends:
    def __init__(self, parts: Parts, entries: Entries) -> None:
        self._parts = parts
        self._entries = entries
        self._generations = 0

    async def reserve(self, run: Run) -> None:
        """Gives the run the session's backend, which is built if there is none."""
        entry = run.entry
        while True:
            check(run)
            if (refusal := entry.quarantine()) is not None:
                raise refusal
            generation = entry.generation
            if generation is None:
                if entry.building is None:
                    entry.building = self._parts.spawn(self._build(entry), "build backend")
                building = entry.building
                await asyncio.wait({building})
                if (failure := failure_of(building)) is not None:
                    raise foreign(failure)
            elif generation.usable or (generation.phase == "active" and generation.runs):
                # One that is to be replaced is looked at again when it is free.
                run.generation = generation
                return
            else:
                await entry.until(partial(_moved, run, generation))

    async def _build(self, entry: Entry) -> None:
        invalidations = entry.invalidations
        try:
            session = entry.open
            assert session is not None
            view = session.journal.state.session
            settings = {**(view.header or {}), **view.patch}
            name = str(settings.get("backend", ""))
            context = BackendContext(
                session_id=entry.session_id,
                session_dir=session.directory,
                settings=settings,
                new_id=self._parts.new_id,
                now=self._parts.now,
                tools=self._parts.tools,
                record_run_composition=partial(self._record, entry),
            )
            backend = await self._made(name, context)
            self._generations += 1
            entry.generation = Generation(
                self._generations,
                f"backend {name!r} of session {entry.session_id}",
                backend,
                self._parts.deadlines,
                self._parts.spawn,
            )
            entry.generation.stale = entry.invalidations != invalidations
            self._parts.lifecycle.tell("backend_built", entry.session_id, backend=name, generation=self._generations)
        finally:
            entry.building = None
            entry.changed()
        self.retire(entry)

    async def _made(self, name: str, context: BackendContext) -> Backend:
        """Raises BackendUnknown, and RuntimeFailure where the factory raises or gives no backend."""
        factory = self._parts.backends.factory(name)
        failure: RuntimeFailure
        try:
            with exits_contained("it"):
                made: Any = factory(context)
                if isinstance(made, Awaitable):
                    made = await made
        except Exception as error:
            failure = RuntimeFailure(
                f"backend {name!r} of session {context.session_id} could not be built ({describe(error, typed=True)}); "
                "mend what builds it"
            )
            failure.__cause__ = error
        else:
            if (problem := unsuited(made)) is None:
                backend: Backend = made
                return backend
            failure = RuntimeFailure(
                f"what builds backend {name!r} of session {context.session_id} gave {problem}; mend it"
            )
        self._parts.lifecycle.tell(
            "backend_failed", context.session_id, backend=name, error=failure, defect=failure.__cause__ is not None
        )
        raise failure

    async def _record(self, entry: Entry, run_id: str, composition: RunComposition) -> None:
        run = entry.current
        if run is None or run.identity.run_id != run_id or run.ledger is None or run.ledger.sealed:
            raise InvalidEvent(
                f"run {run_id} of session {entry.session_id} does not run here, so nothing is recorded of what it is "
                "made of; record it while it runs",
                type="run/composition",
                key="run_id",
            )
        await run.handing.record(composition, self._parts.failpoint)

    def retire(self, entry: Entry) -> None:
        """A backend that is not used any more makes room for the next."""
        generation = entry.generation
        if generation is None or generation.runs:
            return
        if generation.phase == "terminated":
            entry.generation = None
        elif generation.stale and generation.phase == "active":
            self._parts.spawn(self.dispose(entry, generation), "replace backend")
        entry.changed()

    async def dispose(self, entry: Entry, generation: Generation) -> None:
        """Of one that runs nothing; where a run has begun on it meanwhile it is replaced after that, if it is stale."""
        if generation.runs:
            return
        await generation.dispose()
        error = generation.disposal_failure
        self._parts.lifecycle.tell("backend_disposed", entry.session_id, generation=generation.number, error=error)
        if error is not None:
            await self._quarantine(entry, None)
        self.retire(entry)

    def overdue(self, run: Run) -> None:
        self._parts.spawn(self._give_up(run), "give up a backend")

    async def _give_up(self, run: Run) -> None:
        """The turn has ended, or the run was told to pause, and ``send`` has not."""
        if run.exited or run.generation is None:
            return
        behind = "the end of turn" if run.claimant is not None else "it was told to pause in turn"
        late = BackendTimeout(
            f"send() of {run.generation.name} went on for {self._parts.deadlines.exit:g} s after {behind} "
            f"{run.identity.turn_id}; the backend is given up, mend it or give it more time"
        )
        if run.claim_terminal("event", failed("backend_timeout", str(late))):
            with suppress(JournalError):
                await run.end()  # it is among the run's failures
        await run.generation.fail(late)
        await self.settle(run)

    async def settle(self, run: Run) -> None:
        """After a backend was given up: is the session quarantined?"""
        entry, generation = run.entry, run.generation
        assert generation is not None
        if generation.noted is None:
            self._parts.lifecycle.tell(
                "backend_failed",
                entry.session_id,
                generation=generation.number,
                error=generation.failure,
                defect=not isinstance(generation.failure, RuntimeFailure),
            )
        if generation.disposal_failure is None and not run.exited:
            gone = self._parts.spawn(entry.until(lambda: run.exited), "grace")
            await asyncio.wait({gone}, timeout=self._parts.deadlines.grace)
            gone.cancel()
        if not generation.runs:
            self.retire(entry)
        if entry.quarantine() is not None and entry.generation is generation:
            await self._quarantine(entry, run)
        entry.changed()

    async def _quarantine(self, entry: Entry, run: Run | None) -> None:
        """Leaves word in the journal, once: after a restart people should know that something was left running."""
        refusal, generation = entry.quarantine(), entry.generation
        if refusal is None or generation is None or generation.noted == refusal.permanent:
            return
        generation.noted = refusal.permanent
        self._parts.lifecycle.tell("session_quarantined", entry.session_id, permanent=refusal.permanent, error=refusal)
        session = self._entries.usable(entry.session_id)
        if session is None:
            return
        note: JsonObject = {"kind": "quarantine"}
        if run is not None:
            note |= {"run_id": run.identity.run_id, "turn_id": run.identity.turn_id}
        note["text"] = str(refusal)[:_REASON]
        try:
            session.observe(session.journal.append(Draft("session/note", note)))
            await session.journal.aflush()
        except JournalError as error:
            self._entries.degrade(entry, session, error)


def check(run: Run) -> None:
    if run.cancelled:
        raise Cancelled


def _moved(run: Run, generation: Generation) -> bool:
    """Is it worth looking again at a generation that could not be used?"""
    entry = run.entry
    return run.cancelled or entry.generation is not generation or generation.usable or entry.quarantine() is not None
