"""A run is handed over at a step boundary, and a successor finishes its turn: every decision, and what it leaves."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

import pytest

from maka.journal.errors import JournalError
from maka.journal.events import Draft, JsonObject
from maka.runtime.app import App
from maka.runtime.backends.base import BackendContext, SendInput, StopMode, StopReason
from maka.runtime.continuation.safety import SafetyObservation
from maka.runtime.errors import ContinuationRevalidationError, CopyRefused, HandoffRefused
from maka.runtime.handoff.denials import has_explicit_sandbox_boundary_denial
from maka.runtime.handoff.pause import HandoffPause
from maka.runtime.handoff.sameness import recorded_composition
from maka.runtime.journals import OpenSession
from maka.runtime.session_events import SessionEvent
from maka.runtime.sessions import SessionManager
from support.composed import composed
from support.legal import assert_legal
from support.managed import events_of, go

Decision = Literal[
    "commit",
    "cancel",
    "stop",
    "write_failure",
    "missing_source_snapshot",
    "missing_persisted_source_snapshot",
    "missing_capability",
    "uncommitted_preparation",
    "prompt_drift",
    "tool_drift",
    "availability_drift",
    "provider_options_drift",
    "context_window_drift",
    "revision_only",
    "inherited_denial",
    "denial_lookup_failure",
]
SUCCEEDS: Final = ("commit", "revision_only", "inherited_denial")
#: Refused before the boundary is claimed.
UNCLAIMED: Final = {
    "denial_lookup_failure": "sandbox_denial_unknown",
    "missing_persisted_source_snapshot": "source_identity_changed",
}
#: What a successor has that its source had not.
DRIFT: Final[dict[str, dict[str, Any]]] = {
    "prompt_drift": {"base_system_prompt_hash": "sha256:" + "1" * 64},
    "tool_drift": {"tool_catalog_hash": "sha256:" + "1" * 64},
    "availability_drift": {"tool_availability_hash": "sha256:" + "1" * 64},
    "provider_options_drift": {"base_provider_options_hash": "sha256:" + "1" * 64},
    "context_window_drift": {"context_window": 8192},
    "revision_only": {"composer_revision": "2"},
}
SESSION: Final = "handoff"
PAUSE: Final = HandoffPause(
    handoff_id="handoff",
    host_epoch="host-1",
    root_run_id="original-run",
    successor_run_id="successor-run",
    successor_invocation_id="successor-run",
    claim_id="exact-handoff-claim",
)


class Fixture:
    """A backend whose runs stand at a boundary once ``reach`` is set, and whose streams end once ``release`` is."""

    def __init__(self, context: BackendContext, decision: str) -> None:
        self.context = context
        self.decision = decision
        self.entered, self.reach, self.release = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.abort = asyncio.Event()
        self.inputs: list[SendInput] = []
        self.prepare_run_composition: Any = self._prepare

    async def _prepare(self, run_id: str, turn_id: str) -> None:
        successor = run_id == "successor-run"
        if successor and self.decision == "uncommitted_preparation":
            return
        drifted = DRIFT.get(self.decision, {}) if successor else {}
        await self.context.record_run_composition(run_id, composed(**drifted))

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        self.inputs.append(input)
        if input.continuation is None:
            if self.decision != "missing_source_snapshot":
                await self._prepare(input.run_id, input.turn_id)
            self.entered.set()
            await self.reach.wait()
            result = await input.handoff_boundary(self.abort, 2)
            await self.release.wait()
            if result == "pause" and not self.abort.is_set():
                return
        yield SessionEvent(
            "complete",
            f"complete-{len(self.inputs)}",
            input.turn_id,
            self.context.now(),
            {"stop_reason": "user_stop" if self.abort.is_set() else "end_turn"},
        )

    async def stop(self, reason: StopReason, mode: StopMode) -> None:
        self.abort.set()

    async def dispose(self) -> None:
        self.abort.set()


class World:
    """One manager, its backend, and what a test replaces in it."""

    def __init__(self, root: Path, decision: str) -> None:
        self.root = root
        self.decision = decision
        self.backend: Fixture | None = None
        self.asked: list[Sequence[JsonObject]] = []
        self.fails: dict[str, Exception] = {}
        self.inherits: bool | Exception | None = None
        self.hidden: set[str] = set()
        self.told: list[SessionEvent] = []

    def built(self, context: BackendContext) -> Fixture:
        self.backend = Fixture(context, self.decision)
        return self.backend

    async def has_denial(self, session: OpenSession, identities: Sequence[JsonObject]) -> bool:
        self.asked.append(identities)
        if isinstance(self.inherits, Exception):
            raise self.inherits
        return await has_explicit_sandbox_boundary_denial(session, identities) if self.inherits is None else True

    async def composition(self, session: OpenSession, run_id: str) -> JsonObject | None:
        return None if run_id in self.hidden else await recorded_composition(session, run_id)

    async def inspect_continuation_safety(self, session_id: str) -> SafetyObservation:
        return SafetyObservation(
            workspace_identity="workspace-1", background_operations_settled=True, available_tool_names=()
        )

    def appends(self, draft: Draft) -> Draft:
        if draft.type in self.fails:
            raise self.fails[draft.type]
        return draft

    def manager(self) -> SessionManager:
        app = App(
            backends={"fixture": self.built},
            default_backend="fixture",
            model="fake-model",
            permission_mode="ask",
            safety_inspector=self,
        )
        return SessionManager(
            self.root,
            app=app,
            on_append=self.appends,
            has_explicit_sandbox_boundary_denial=self.has_denial,
            read_composition=self.composition,
        )

    def events(self) -> list[dict[str, Any]]:
        return events_of(self.root, SESSION)

    def terminals(self, run_id: str) -> list[dict[str, Any]]:
        """The terminal facts of a run."""
        kinds = ("turn/end", "handoff/pause")
        return [event for event in self.events() if event["type"] in kinds and event["data"]["run_id"] == run_id]

    def header(self, run_id: str) -> JsonObject | None:
        """A run's header, as it was created."""
        opened = [event["data"]["run"] for event in self.events() if event["type"] in ("turn/start", "run/created")]
        return next((run for run in opened if run["run_id"] == run_id), None)


async def execution_status(manager: SessionManager) -> str | None:
    """How the execution of the one plan stands."""
    (row,) = await manager.plans.list(SESSION)
    status: str | None = row["execution"]["status"]
    return status


@pytest.mark.parametrize("decision", get_args(Decision))
def test_a_handoff_keeps_one_logical_outcome(decision: Decision, tmp_path: Path) -> None:
    go(_decided(World(tmp_path, decision)))


async def _decided(world: World) -> None:
    decision = world.decision
    async with world.manager() as manager:
        await manager.create(session_id=SESSION, name="handoff", cwd=world.root, connection="fake")
        steps = [{"id": "step-1", "title": "finish", "description": "finish the logical task"}]
        proposal = await manager.plans.propose(SESSION, turn_id="proposal-turn", title="work", steps=steps)
        await manager.plans.approve(SESSION, proposal["proposal_id"], expected_revision=proposal["revision"])

        stream = manager.kernel.start_turn(
            SESSION,
            text="continue work",
            turn_id="logical-turn",
            run_id="original-run",
            root={"kind": "goal", "goal_id": "goal-1"},
        )

        async def reads(turn: Any) -> None:
            async for event in turn:
                world.told.append(event)

        running = asyncio.create_task(reads(stream))
        await stream.started()
        while world.backend is None:
            await asyncio.sleep(0)
        backend = world.backend
        await backend.entered.wait()

        request = manager.kernel.request_run_handoff(SESSION, "original-run", PAUSE, asyncio.Event())
        assert request is not None
        backend.reach.set()
        assert await request.ready is True
        if decision == "missing_source_snapshot":
            with pytest.raises(HandoffRefused, match="durably committed Run Composition"):
                request.preview()
            with pytest.raises(HandoffRefused, match="durably committed Run Composition"):
                request.commit()
            request.cancel()
            backend.release.set()
            await running
            assert await request.sealed is False
            assert kinds_of(world.terminals("original-run")) == ["completed"]
            return
        assert not [event for event in world.told if event.kind == "complete"]
        assert request.preview().data == {**pause_data(), "remaining_steps": 2}

        if decision == "write_failure":
            world.fails["handoff/pause"] = RuntimeError("pause durability failed")
        if decision == "cancel":
            request.cancel()
        else:
            assert request.commit() is True
        stopped = manager.kernel.stop_session(SESSION, source="stop_button") if decision == "stop" else None
        backend.release.set()
        if decision == "write_failure":
            with pytest.raises(JournalError, match="pause durability failed"):
                await running
            with pytest.raises(JournalError, match="pause durability failed"):
                await request.sealed
            assert not [event for event in world.told if event.kind in ("complete", "error")]
            # No other terminal is invented for it.
            assert world.terminals("original-run") == []
            return
        if stopped is not None:
            await stopped
        await running
        committed = decision not in ("cancel", "stop")
        assert await request.sealed is committed
        (terminal,) = world.terminals("original-run")
        if not committed:
            assert terminal["type"] == "turn/end"
            assert terminal["data"]["reason"]["kind"] == ("aborted" if decision == "stop" else "completed")
            assert not [event for event in world.events() if event["type"] == "handoff/pause"]
            return
        assert terminal["type"] == "handoff/pause"
        assert terminal["data"] == {**pause_data(), "remaining_steps": 2}
        assert not [event for event in world.told if event.kind in ("complete", "error")]
        with pytest.raises(CopyRefused) as refused:
            await manager.copy_turns(SESSION, ["logical-turn"])
        assert refused.value.code == "branch_runtime_fact_rewrite_unsupported"
        assert [row["session_id"] for row in await manager.list()] == [SESSION]

        await manager.recover_interrupted_sessions()
        assert await execution_status(manager) == "active"
        assert world.terminals("original-run") == [terminal]
        execution = (await manager.read(SESSION)).execution("logical-turn")
        assert execution is not None
        assert (execution["tip"], execution["status"]) == ("original-run", "paused")
        assert execution["pending_handoff"] == "handoff"

        plan = await manager.plan_safe_boundary_continuation(SESSION, source_run_id="original-run", purpose="handoff")
        continuation = plan.continuation
        assert continuation is not None, plan.to_json()
        assert (continuation.turn_id, continuation.run_id) == ("logical-turn", "successor-run")
        ordinary = await manager.plan_safe_boundary_continuation(SESSION, source_run_id="original-run")
        assert ordinary.disposition == "park"
        assert ordinary.rejection_reasons == ("runtime_identity_mismatch",)

        if decision == "missing_capability":
            backend.prepare_run_composition = None
        if decision == "inherited_denial":
            world.inherits = True
        if decision == "denial_lookup_failure":
            world.inherits = RuntimeError("denial authority unavailable")
        if decision == "missing_persisted_source_snapshot":
            world.hidden.add("original-run")

        identities = [identity(segment) for segment in continuation.boundary["segments"]]
        resumed = manager.resume_safe_boundary_continuation(continuation)
        if decision in UNCLAIMED:
            before = world.events()
            with pytest.raises(
                ContinuationRevalidationError, match=r"denial authority unavailable|no durable Run Composition"
            ) as unclaimed:
                await reads(resumed)
            assert unclaimed.value.code == UNCLAIMED[decision]
            # Asked of exactly the runs of the boundary, in their order.
            assert world.asked == [identities]
            assert len(backend.inputs) == 1
            assert world.header("successor-run") is None
            assert world.events() == before
            assert execution == (await manager.read(SESSION)).execution("logical-turn")
            return
        if decision in SUCCEEDS:
            await reads(resumed)
        else:
            with pytest.raises(
                ContinuationRevalidationError, match=r"Run Composition|composition preparation"
            ) as stale:
                await reads(resumed)
            assert stale.value.code == ("composition_changed" if decision in DRIFT else "composition_unavailable")
        assert world.asked == [identities]
        succeeded = decision in SUCCEEDS
        assert len(backend.inputs) == (2 if succeeded else 1)
        if succeeded:
            given = backend.inputs[1]
            assert given.max_steps == 2
            assert given.head_anchor is not None
            assert (given.head_anchor["run_id"], given.head_anchor["turn_id"]) == ("original-run", "logical-turn")
            assert [block["kind"] for block in given.head_anchor["content"]] == ["text"]
            assert given.continuation is not None
            assert given.continuation.sandbox_boundary_denied is (decision == "inherited_denial")
        execution = (await manager.read(SESSION)).execution("logical-turn")
        assert execution is not None
        assert (execution["root_run_id"], execution["tip"]) == ("original-run", "successor-run")
        assert execution["chain"] == ["original-run", "successor-run"]
        assert execution["root"] == {"kind": "goal", "goal_id": "goal-1"}
        header = world.header("successor-run")
        assert header is not None
        assert header["root"] == {"kind": "goal", "goal_id": "goal-1"}
        assert kinds_of(world.terminals("successor-run")) == ["completed" if succeeded else "failed"]
        assert execution["status"] == ("completed" if succeeded else "failed")
        assert len([event for event in world.told if event.kind == "complete"]) == (1 if succeeded else 0)
        await manager.recover_interrupted_sessions()
        assert await execution_status(manager) == "interrupted"
        session = await manager.read(SESSION)
        assert session.verdict == "healthy"
        assert_legal(session.messages())


def pause_data() -> JsonObject:
    return PAUSE.draft(run_id="original-run", turn_id="logical-turn", remaining_steps=None).data


def kinds_of(terminals: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["reason"]["kind"] for event in terminals]


def identity(segment: JsonObject) -> JsonObject:
    return {key: segment[key] for key in ("session_id", "invocation_id", "run_id", "turn_id")}
