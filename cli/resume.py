"""Goes on with a session that was cut off: recovers it, plans, runs what was planned, settles. Gives documents."""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import attrs

from ..journal.errors import JournalDamaged, JournalError, JournalUnsupported
from ..journal.events import JsonObject, Recovery
from ..journal.reader import JOURNAL, resolve
from ..journal.shapes import SESSION_ID
from ..journal.store import SESSIONS, default_root
from ..repair.apply import refuse_locked, repair
from ..repair.plan import appended_json
from ..repair.session import inspect, survey
from ..runtime.app import App, load_app
from ..runtime.app.naming import find_app
from ..runtime.continuation.safety import SafetyObservation, look
from ..runtime.errors import ContinuationRevalidationError, RuntimeFailure
from ..runtime.session_events import SessionEvent
from ..runtime.sessions import SessionManager
from . import exits
from .documents import Answer, Doc
from .failures import failure_of

if TYPE_CHECKING:
    from ..runtime.backends.base import Backend, BackendContext
    from ..runtime.continuation.plan import Continuation, ContinuationPlan
    from ..runtime.kernel.stream import TurnStream

#: Who stops a turn, as its end will say: a person at the keyboard, and the command that finds nobody to answer.
_PERSON: Final = "user"
_NOBODY: Final = "nobody_to_answer"


@attrs.frozen
class Place:
    """A session by its journal. ``root`` is the root that it lies below, if it lies where a root has its sessions."""

    path: Path
    session_id: str
    root: Path | None

    def manager(self, app: App | None) -> SessionManager:
        """A manager for it. Without an app it plans and settles, and runs nothing."""
        places = {} if self.root is not None else {self.session_id: self.path}
        return SessionManager(self.root, app=app or _nothing_to_run(self.path), places=places)


def place_of(target: str, root: str | None) -> Place:
    """Where a session is. Raises SessionNotFound."""
    path = resolve(target, root)
    directory = path.absolute().parent
    named = path.name == JOURNAL and SESSION_ID.fullmatch(directory.name)
    if named and directory.parent.name == SESSIONS:
        return Place(path, directory.name, directory.parents[1])
    return Place(path, survey(path).session_id, None)


# ---------------------------------------------------------------- what runs


def app_of(name: str | None, root: str | None) -> App | None:
    """The app that is named; None where none is. Imports it. Raises AppError.

    The root of a path is not asked: whoever made the session's folder does not say what runs here.
    """
    place = _place_of_config(root)
    if find_app(name, place, os.environ) is None:
        return None
    return load_app(name, place, os.environ, Path.cwd())[0]


def refuse_without_app(root: str | None) -> NoReturn:
    """Raises the AppError that says how one is named."""
    load_app(None, _place_of_config(root), os.environ, Path.cwd())
    raise AssertionError("there was none a moment ago")


def _place_of_config(root: str | None) -> Path:
    return Path(root) if root is not None else default_root()


def _nothing_to_run(path: Path) -> App:
    return App(backends={"none": _no_backend}, default_backend="none", safety_inspector=_Unnamed(path))


def _no_backend(context: "BackendContext") -> "Backend":
    raise RuntimeFailure("no app is named, so there is no backend; name one with --app")


@attrs.frozen
class _Unnamed:
    """Where nobody says which tools there are, those that the session has called count as there."""

    path: Path

    async def inspect_continuation_safety(self, session_id: str) -> SafetyObservation:
        view = await asyncio.to_thread(inspect, self.path)
        called = {
            block["name"]
            for message in view.messages()
            for block in message["content"]
            if block.get("kind") == "tool_call" and isinstance(block.get("name"), str)
        }
        return await look(str(view.settings()["cwd"] or ""), called, settled=True)


# ---------------------------------------------------------------- recover and plan


async def planned(
    manager: SessionManager,
    place: Place,
    *,
    run: str | None,
    rerun: Iterable[Recovery],
    mode: str | None,
    dry: bool,
    named: bool,
) -> "tuple[ContinuationPlan, Answer]":
    """The plan for the session, which is recovered before unless ``dry``; and the answer, if nothing is run.

    ``mode`` is the permission mode that the session is given behind the recovery. ``named``: is there an app? Raises
    JournalLocked for a session that somebody has open, and other JournalErrors for what cannot be read or written.
    """
    recovered = None
    if dry:
        _refuse(place.path)
    else:
        recovered = await _recovered(manager, place)
        if mode is not None:
            await manager.update(place.session_id, {"permission_mode": mode})
    plan = await manager.plan_safe_boundary_continuation(place.session_id, source_run_id=run, rerun=rerun, repaired=dry)
    said = plan.to_json()
    doc: Doc = {
        "session_id": place.session_id,
        "path": str(place.path),
        "recovered": recovered,
        **{key: said[key] for key in ("disposition", "rejection_reasons", "diagnostics")},
        "source_run_id": plan.source_run_id,
        "continuation": said["continuation"],
        "turn": None,
    }
    if not named:
        doc["diagnostics"].append({"code": "app_missing", "message": _APP_MISSING})
    if run is not None and plan.rejection_reasons == ("source_run_unreadable",):
        return plan, Answer(doc, exits.USAGE)
    return plan, Answer(doc, exits.OF_PLAN[plan.disposition])


_APP_MISSING: Final = (
    "no app is named, so nobody has looked whether the tools that the run called are still there, nor asked them what "
    "became of calls whose outcome is unknown; name one with --app"
)


def _refuse(path: Path) -> None:
    """Raises what a recovery would be refused with. Writes nothing."""
    report = repair(path, dry_run=True)
    if report.refused is not None:
        kind = {"damaged": JournalDamaged, "unsupported": JournalUnsupported}.get(report.verdict_before, JournalError)
        raise kind(f"{path}: {report.refused}", path=path)


async def _recovered(manager: SessionManager, place: Place) -> JsonObject:
    found = await manager.recover(place.session_id)
    while found.state == "open":
        # Whoever had it may have closed it since.
        refuse_locked(Path(os.path.realpath(place.path)).parent)
        found = await manager.recover(place.session_id)
    if found.error is not None:
        raise found.error
    return {"state": found.state, "appended": found.appended, "reconciled": found.reconciled}


# ---------------------------------------------------------------- run


async def run(
    manager: SessionManager,
    continuation: "Continuation",
    doc: Doc,
    tell: Callable[[SessionEvent], None] | None,
) -> Answer:
    """Carries out what was planned, and gives the whole answer. A turn that asks a person is stopped: none can answer.

    ``tell`` is told what happens. When this is cancelled the turn is stopped, and has its end on disk. Raises what
    keeps the run from starting.
    """
    stream = manager.resume_safe_boundary_continuation(continuation)
    refusal: str | None = None
    code: int | None = None
    try:
        async for event in stream:
            if tell is not None:
                tell(event)
            if refusal is None and (ask := _ASKS.get(event.kind)) is not None:
                refusal = f"the turn was stopped: {ask(event.data, continuation.configuration['permission_mode'])}"
                doc["diagnostics"].append({"code": "answer_needed", "message": refusal})
                await manager.stop(continuation.session_id, source=_NOBODY)
    except asyncio.CancelledError:
        await manager.stop(continuation.session_id, source=_PERSON)
        raise
    except ContinuationRevalidationError as error:
        refusal, code = str(error), exits.PENDING
        doc["diagnostics"].append({"code": error.code, "message": refusal})
    except (RuntimeFailure, JournalError) as error:
        if stream.reason is None:
            raise
        # The turn has its end; what failed came behind it.
        failure = failure_of(error)
        refusal, code = failure.sentence, failure.code
    doc["turn"] = _turn(stream)
    if code is None:
        code = exits.PENDING if stream.reason is None else exits.OF_TURN[stream.reason["kind"]]
    return Answer(doc, code, refusal)


def _turn(stream: "TurnStream") -> JsonObject | None:
    reason = stream.reason
    if reason is None:
        return None
    return {"turn_id": stream.turn_id, "run_id": stream.run_id, "status": reason["kind"], "reason": reason}


def _permission(data: JsonObject, mode: object) -> str:
    return (
        f"`{data['name']}` waits for a permission ({data['reason']}), and nobody can answer here; give the session a "
        f"permission mode in which it runs, which `{mode}` is not (`maka app show` tells what asks in which) by "
        "`maka session resume --permission-mode MODE`, or continue it in a program that answers"
    )


def _question(data: JsonObject, mode: object) -> str:
    return (
        f"it asks a person ({data['questions'][0]['question']}), and nobody can answer here; continue it in a program "
        "that answers, or send it the answer as a message"
    )


def _boundary(data: JsonObject, mode: object) -> str:
    return (
        f"it asks to leave its sandbox ({data['justification']}), and nobody can answer here; continue it in a program "
        "that answers"
    )


#: Kinds of events with which a run asks a person → why its turn was stopped, given the session's permission mode.
_ASKS: Final[dict[str, Callable[[JsonObject, object], str]]] = {
    "permission_request": _permission,
    "question_request": _question,
    "sandbox_boundary_request": _boundary,
}


# ---------------------------------------------------------------- settle


async def settled(place: Place, *, claim: str | None, call: str | None, ok: bool, text: str | None) -> Doc:
    """Settles a claim, or a call with this outcome, and gives the answer of `settle`.

    Raises SettleRefused, JournalLocked for a session that somebody has open, and other JournalErrors.
    """
    async with place.manager(None) as manager:
        if claim is not None:
            events = await manager.settle_indeterminate_continuation(place.session_id, claim)
        else:
            events = await manager.settle_call(place.session_id, call or "", ok=ok, text=text)
    return {"session_id": place.session_id, "path": str(place.path), "appended": appended_json(events)}
