"""A run that a restart has ended, its continuation, and the place in the protocol at which that hangs to be killed."""

import asyncio
import itertools
from pathlib import Path
from typing import Any, Final

from maka.journal.events import Draft
from maka.runtime.app import App
from maka.runtime.backends.scripted import ScriptedBackends, scripted_backend
from maka.runtime.continuation.failpoints import Failpoint
from maka.runtime.opening import facts_of
from maka.runtime.sessions import SessionManager

FAILPOINTS: Final[tuple[Failpoint, ...]] = (
    "after_continuation_claim_committed",
    "after_run_created",
    "after_continuation_start_committed",
    "after_terminal_event_committed",
    "after_terminal_header_committed",
)
SESSION: Final = "crashed"
SOURCE: Final = "source-run"
TEXT: Final = "continue after crash"


class Inspector:
    """The workspace is always the same, and nothing goes on in it."""

    async def inspect_continuation_safety(self, session_id: str) -> dict[str, Any]:
        return {
            "workspace_identity": "workspace-1",
            "background_operations_settled": True,
            "available_tool_names": [],
        }


def manager(
    root: Path, backends: ScriptedBackends | None = None, *, prefix: str = "recovery-id-1", **options: Any
) -> SessionManager:
    numbers, ticks = itertools.count(1), itertools.count(11)
    app = App(
        backends={"scripted": backends or scripted_backend(["It goes on."], repeat=True)},
        default_backend="scripted",
        model="scripted-model",
        permission_mode="execute",
        safety_inspector=Inspector(),
    )
    options = {"clock": lambda: next(ticks), "new_id": lambda: f"{prefix}{next(numbers)}", **options}
    return SessionManager(root, app=app, **options)


def source(cwd: Path) -> list[list[Draft]]:
    """The batches of a run that has one user message and was ended by a restart."""
    ids = {"turn_id": "source-turn", "run_id": SOURCE}
    run = {
        "run_id": SOURCE,
        "invocation_id": "source-invocation",
        "turn_id": "source-turn",
        "backend": "scripted",
        "model": "scripted-model",
        "cwd": str(cwd),
        "workspace_identity": "workspace-1",
        "permission_mode": "execute",
        "created_at": 1,
        "root": {"kind": "user"},
    }
    message = {"message_id": "source-user", **ids, "content": [{"kind": "text", "text": TEXT}]}
    start = {**ids, "invocation_id": "source-invocation", "turn": 1, "run": run}
    reason = {"kind": "failed", "failure_class": "app_restarted"}
    return [
        [Draft("turn/start", start), Draft("user/message", {**message, "source": {"kind": "user"}})],
        [Draft("turn/end", {**ids, "reason": reason})],
        [Draft("run/settled", {"run_id": SOURCE})],
    ]


async def begun(manager: SessionManager, root: Path) -> None:
    """Creates the session, with the run that is to be continued."""
    await manager.create(session_id=SESSION, cwd=root, name="continuation crash child")
    for batch in source(root):
        await manager.kernel.append(SESSION, lambda _, batch=batch: batch)  # type: ignore[misc]


def crash_at(root: str, failpoint: Failpoint) -> None:
    """Continues the run, says ``READY:`` where it has come to the point, and hangs there for good."""
    asyncio.run(_crash_at(Path(root), failpoint))


async def _crash_at(root: Path, failpoint: Failpoint) -> None:
    async def hang(point: Failpoint) -> None:
        if point == failpoint and point != "after_terminal_header_committed":
            await _suspend(point)

    async with manager(root, prefix="id-", continuation_failpoint=hang) as sessions:
        await begun(sessions, root)
        plan = await sessions.plan_safe_boundary_continuation(SESSION, source_run_id=SOURCE)
        assert plan.continuation is not None, plan
        async for _ in sessions.resume_safe_boundary_continuation(plan.continuation):
            pass
        if failpoint == "after_terminal_header_committed":
            assert statuses(root)[plan.continuation.run_id] == "completed"
            await _suspend(failpoint)
        await asyncio.Event().wait()


async def _suspend(point: Failpoint) -> None:
    print(f"READY:{point}", flush=True)
    await asyncio.Event().wait()


def statuses(root: Path) -> dict[str, str]:
    """The status of each run, from what is on disk alone."""
    facts = facts_of(root / "sessions" / SESSION / "journal.jsonl")
    return {row["run_id"]: row["status"] for row in facts.state.run_rows()}


__all__ = ["FAILPOINTS", "SESSION", "SOURCE", "TEXT", "begun", "crash_at", "manager", "source", "statuses"]
