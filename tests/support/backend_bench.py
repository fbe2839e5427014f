"""A loop backend, and a pump that does with what it says what a kernel does."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from maka.journal.errors import JournalError
from maka.journal.events import Draft
from maka.runtime.backends.base import BackendContext, Boundary, SendInput, SteeringLease
from maka.runtime.backends.loop import LoopBackend
from maka.runtime.composition import RunComposition
from maka.runtime.conversation import Conversation
from maka.runtime.ledger import Ledger
from maka.runtime.loop import Options
from maka.runtime.progress import beginning
from maka.runtime.scripted import ScriptedModel
from maka.runtime.session_events import BARRIERS, END_OF, SessionEvent

from .loops import MemoryJournal, header
from .seeded_loop import run


class Person:
    """Answers what is asked, with what ``outcomes`` gives; ``asked`` is what it was asked."""

    def __init__(self, *outcomes: Any) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._outcomes = iter(outcomes)

    async def ask(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((kind, request))
        await asyncio.sleep(0.01)
        outcome = next(self._outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        answer: dict[str, Any] = outcome() if callable(outcome) else outcome
        return answer


class Bench:
    """A backend and a pump that does with its events what a kernel does: journal, sync where due, ask for the next."""

    def __init__(
        self,
        script: list[Any],
        tools: list[Any] | None = None,
        *,
        mode: str = "bypass",
        person: Person | None = None,
        options: Options | None = None,
        max_steps: int | None = None,
        leases: list[SteeringLease] | None = None,
        boundary: Callable[..., Any] | None = None,
        fail: Callable[[MemoryJournal], JournalError | None] = lambda journal: None,
        **settings: Any,
    ) -> None:
        ids = itertools.count(1)
        self.journal = MemoryJournal(fail)
        made = header()
        made.data["permission_mode"] = mode
        self.conversation = Conversation([self.journal.append(made)])
        self.journal.synced = 1
        self.person = person or Person()
        self.model = ScriptedModel(script)
        self.told: list[SessionEvent] = []
        self.slept: list[float] = []
        self.batches: list[list[str]] = []
        self.reason: dict[str, Any] | None = None
        self.leases = leases or []
        self.settled: list[tuple[str, list[str]]] = []
        self.defect: BaseException | None = None
        self.beside: list[asyncio.Future[None]] = []
        #: The backend was told to pause.
        self.paused = False
        self.boundary = boundary
        #: Does somebody ask for a handoff?
        self.wanted: Callable[[], bool] = lambda: True

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        self.context = BackendContext(
            session_id="s1",
            session_dir=Path("/nonexistent"),
            settings={},
            new_id=lambda: f"id{next(ids)}",
            now=lambda: 0,
            record_run_composition=self._record,
        )
        self.backend = LoopBackend(
            self.model,
            tools or [],
            options or Options(),
            self.context,
            sleep=sleep,
            chance=lambda: 1.0,
            **settings,
        )
        self.max_steps = max_steps

    async def turn(self, turn_id: str = "t") -> None:
        run_id = f"run of {turn_id}"
        ledger = self.ledger = Ledger(
            self.journal,
            self.conversation.observe,
            self.told.append,
            turn_id=turn_id,
            run_id=run_id,
            new_id=self.context.new_id,
            now=lambda: 0,
            live_text=False,
        )
        content = [{"kind": "text", "text": "hello"}]
        drafts = beginning(
            self.conversation,
            turn=self.journal.state.turns.last + 1,
            turn_id=turn_id,
            run_id=run_id,
            invocation_id="v",
            message_id=f"asked in {turn_id}",
            content=content,
            created_at=0,
        )
        ledger.begin(drafts)
        await ledger.barrier()
        stream = self.backend.send(
            SendInput(
                session_id="s1",
                turn_id=turn_id,
                run_id=run_id,
                invocation_id="v",
                text="hello",
                content=content,
                conversation=self.conversation,
                interactions=self.person,
                max_steps=self.max_steps,
                handoff_boundary=self._stand,
                handoff_wanted=self.wanted,
                pull_steering=self._pull,
                ack_steering=lambda ids: self.settled.append(("ack", list(ids))),
                nack_steering=lambda ids: self.settled.append(("nack", list(ids))),
            )
        )
        failure: dict[str, Any] = {}
        try:
            async for event in stream:
                events = [event, *stream.ready()]
                self.batches.append([event.kind for event in events])
                for event in events:
                    if event.kind == "complete":
                        assert self.reason is None
                        self.reason = {"kind": END_OF[event.data["stop_reason"]], **failure}
                    elif event.kind == "error":
                        failure = event.data
                    else:
                        ledger.take(event)
                if BARRIERS & set(self.batches[-1]):
                    await ledger.barrier()
        except JournalError:
            raise
        except Exception as error:
            self.defect = error
            self.reason = {"kind": "failed", "failure_class": "defect"}
        finally:
            await stream.aclose()
        if self.reason is None and self.paused:
            await ledger.barrier()
            return
        assert self.reason is not None
        ledger.end(self.reason, settle=True)
        await ledger.barrier()

    async def _stand(self, signal: asyncio.Event | None, remaining_steps: int | None) -> Boundary:
        said: Boundary = "continue" if self.boundary is None else await self.boundary(signal, remaining_steps)
        self.paused = said == "pause"
        return said

    async def _record(self, run_id: str, composition: RunComposition) -> None:
        data = {"run_id": run_id, "composition": composition.to_json()}
        if data not in self.journal.of("run/composition"):
            self.conversation.observe(self.journal.append(Draft("run/composition", data)))
        await self.journal.aflush()

    def durable(self) -> list[str]:
        """The types of what stands on the disk."""
        return [event.type for event in self.journal.events[: self.journal.synced]]

    def _pull(self) -> list[SteeringLease]:
        taken, self.leases = self.leases, []
        return taken

    def run(self, seed: int = 1) -> "Bench":
        async def main() -> None:
            await self.turn()
            await asyncio.gather(*self.beside)

        run(main(), seed)
        return self

    def states(self) -> list[str]:
        return [data["state"] for data in self.journal.of("tool/result")]
